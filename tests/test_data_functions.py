import ast
from itertools import pairwise

from twofold.data.corpus import load_corpus
from twofold.data.functions import functions

SOURCE = '''import functools

def plain(a):
    """Doc."""
    def inner():
        return a
    return inner

class Outer:
    x = 1

    @property
    @functools.cache
    def size(self):
        return 1

    class Inner:
        async def wait(self): pass

if plain:
    def late(): return "é"
'''


def test_each_function_is_a_text_with_its_decorators_and_without_its_indentation():
    found = dict(functions(SOURCE))
    assert list(found) == ["plain:3", "Outer.size:12", "Outer.Inner.wait:18", "late:21"]
    assert found["Outer.size:12"] == "@property\n@functools.cache\ndef size(self):\n    return 1\n"
    assert found["Outer.Inner.wait:18"] == "async def wait(self): pass\n"
    assert found["late:21"] == 'def late(): return "é"\n'
    assert "def inner" in found["plain:3"]
    for text in found.values():
        ast.parse(text)


def test_what_cannot_be_parsed_has_no_functions():
    assert list(functions("def broken(:")) == []


def test_the_functions_of_the_standard_library_are_short_and_each_is_there_once():
    corpus = load_corpus("python-functions")
    texts = [document.content for document in corpus.documents]
    assert len(texts) == len(set(texts)) > 10_000
    assert len({document.name for document in corpus.documents}) == len(texts)
    assert sorted(map(len, texts))[len(texts) // 2] < 300
    modules = [document.name.partition("::")[0] for document in corpus.documents]
    assert all(a <= b for a, b in pairwise(modules))
