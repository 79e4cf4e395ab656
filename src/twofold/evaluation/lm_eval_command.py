"""`python -m twofold.evaluation.lm_eval_command …`: the command `lm_eval`, which then knows the model `twofold`.

lm-evaluation-harness 0.4.13 finds a model of another package only once that package has been imported.
"""

from __future__ import annotations


def main() -> None:
    """Run the harness's command on this process's arguments. Raises ValueError where the harness is not installed."""
    from twofold.evaluation.downstream_run import require_harness

    require_harness()
    from lm_eval.__main__ import cli_evaluate

    import twofold.evaluation.downstream  # noqa: F401 (importing it registers the model)

    cli_evaluate()


if __name__ == "__main__":
    main()
