"""Which attention layers a native decode step can make (`kernels.decoder_step`), and how."""

from __future__ import annotations

from twofold.attention.layer import Attention
from twofold.attention.projections import Projections
from twofold.attention.treatments import Derotated, Kept, Raw, Separate
from twofold.kernels.decoder_step import Form, Reading, Tail
from twofold.variants.tensors import MATRIX_NAMES, vectors

_MADE = {
    Separate: (Tail.VALUE, Reading.AS_IT_IS),
    Derotated: (Tail.NOTHING, Reading.TURNED_BACK),
    Raw: (Tail.NOTHING, Reading.AS_IT_IS),
    Kept: (Tail.RAW, Reading.ROLLED),
}


def form_of(layer: Attention) -> Form | None:
    """How a layer makes and reads rows, where one plain matrix makes each role and nothing else has a part; or None."""
    seam = layer.projections
    if type(layer) is not Attention or type(seam) is not Projections:
        return None
    variant, sizes = seam.variant, seam.sizes
    wanted = {MATRIX_NAMES[role] for role in roles_of(layer)}
    others = set(seam.matrices) - {*MATRIX_NAMES.values(), "o_proj"}
    if others or not wanted <= set(seam.matrices) or vectors(variant, sizes) or type(seam.maker) not in _MADE:
        return None
    if layer.place.borrows and variant.sharing.query_is_key:
        return None
    tail, reading = _MADE[type(seam.maker)]
    turns = sizes.rotary_dims > 0
    return Form(
        heads=sizes.heads,
        groups=seam.kv_heads,
        head_dim=seam.head_dim,
        query_is_key=variant.sharing.query_is_key,
        keys_turned=seam.maker.keeps_turned,
        tail=tail,
        reading=reading if turns or reading is not Reading.TURNED_BACK else Reading.AS_IT_IS,
        row_width=seam.layout.head_width,
        key_start=seam.layout.key.start,
        value_start=seam.layout.value.start,
        scale=layer.scale,
        softcap=layer.scoring.softcap,
    )


def roles_of(layer: Attention) -> tuple[str, ...]:
    """The roles that a matrix of their own makes in this layer."""
    made = layer.projections.variant.sharing.matrices
    return tuple(role for role in made if role == "query" or not layer.place.borrows)
