"""The two Triton kernels of decode attention: partial results over chunks of the context, and their merging.

Only `decode_triton` imports this module, and only when a step takes that path: it needs triton. Where the spans of
key and value overlap, the tile of rows that covers both is loaded once: the same numbers in registers make the scores
and the weighted sum. Where they do not overlap, each has a tile of its own, and no number is read twice either.

Letters beside those of the package: N rows of one tile, C columns of a tile (a power of two, masked where the span is
narrower), M query heads of a group times query positions, in blocks.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _products(query_MC: tl.tensor, rows_NC: tl.tensor, DOT: tl.constexpr) -> tl.tensor:
    """Scalar products of queries and rows, [M, N]: by tensor cores or, for few queries in float32, by plain sums.

    Tensor cores round float32 to 10 bits; three products of parts ("tf32x3") make up for it, as in torch's own kernel.
    """
    if DOT:
        product_MN = tl.dot(query_MC, tl.trans(rows_NC), input_precision="tf32x3")
    else:
        product_MN = tl.sum(query_MC[:, None, :] * rows_NC[None, :, :], 2)
    return product_MN


@triton.jit
def _turned_products(
    query_MC: tl.tensor,
    partner_MC: tl.tensor,
    rows_NC: tl.tensor,
    bases: tl.tensor,
    offsets: tl.tensor,
    dims_C: tl.tensor,
    tile: tl.tensor,
    KEY_DIM: tl.constexpr,
    N: tl.constexpr,
    DOT: tl.constexpr,
) -> tl.tensor:
    """Scalar products with rows that are turned to their positions: first the queries are turned back by the tile's
    base, then both halves of a pair meet the row, times cosine and sine of its offset in the tile.

    A pair of the key meets q₁k₁' + q₂k₂' = k₁(q₁cos + q₂sin) + k₂(q₂cos − q₁sin). `partner_MC` is (q₂, −q₁), so that
    no number of the row is needed in another column than its own.
    """
    inside_C = (dims_C >= 0) & (dims_C < KEY_DIM)
    cos_C = tl.load(bases + tile * 2 * KEY_DIM + dims_C, mask=inside_C, other=0.0)
    sin_C = tl.load(bases + tile * 2 * KEY_DIM + KEY_DIM + dims_C, mask=inside_C, other=0.0)
    back_MC = query_MC * cos_C[None, :] + partner_MC * sin_C[None, :]
    partner_back_MC = partner_MC * cos_C[None, :] - query_MC * sin_C[None, :]
    at_NC = tl.arange(0, N)[:, None] * (2 * KEY_DIM) + dims_C[None, :]
    cos_NC = tl.load(offsets + at_NC, mask=inside_C[None, :], other=0.0)
    sin_NC = tl.load(offsets + at_NC + KEY_DIM, mask=inside_C[None, :], other=0.0)
    return _products(back_MC, rows_NC * cos_NC, DOT) + _products(partner_back_MC, rows_NC * sin_NC, DOT)


@triton.jit
def _tanh(x: tl.tensor) -> tl.tensor:
    """tanh by an exponential that cannot overflow, and by its series where that would cancel."""
    power = tl.exp2(tl.abs(x) * (-2.0 * LOG2_E))
    large = (1.0 - power) / (1.0 + power)
    square = x * x
    small = x * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 + square * (-17.0 / 315.0))))
    return tl.where(tl.abs(x) < 0.2, small, tl.where(x < 0, -large, large))


@triton.jit(do_not_specialize=["rows", "window"])
def partial_attention(
    # The tensors, None for those that a step lacks. Queries lie as [B, G, M, D], what is written as [B, G, M, splits].
    queries: tl.tensor,
    partners: tl.tensor,
    heads: tl.tensor,
    shared: tl.tensor,
    scales: tl.tensor,
    shared_scales: tl.tensor,
    starts: tl.tensor,
    lengths: tl.tensor,
    bases: tl.tensor,
    offsets: tl.tensor,
    sums: tl.tensor,
    maxima: tl.tensor,
    weights: tl.tensor,
    rows: tl.tensor,
    window: tl.tensor,
    heads_stride_B: tl.tensor,
    heads_stride_G: tl.tensor,
    heads_stride_S: tl.tensor,
    shared_stride_B: tl.tensor,
    shared_stride_S: tl.tensor,
    scales_stride_B: tl.tensor,
    scales_stride_G: tl.tensor,
    scales_stride_S: tl.tensor,
    shared_scales_stride_B: tl.tensor,
    shared_scales_stride_S: tl.tensor,
    scale: tl.tensor,
    softcap: tl.tensor,
    GROUPS: tl.constexpr,
    QUERIES: tl.constexpr,
    POSITIONS: tl.constexpr,
    KEY_START: tl.constexpr,
    KEY_STOP: tl.constexpr,
    VALUE_START: tl.constexpr,
    VALUE_STOP: tl.constexpr,
    SHARED_START: tl.constexpr,
    SHARED_DIM: tl.constexpr,
    FIRST: tl.constexpr,
    ONE_TILE: tl.constexpr,
    CAPPED: tl.constexpr,
    DOT: tl.constexpr,
    HALF: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    C: tl.constexpr,
    VALUE_C: tl.constexpr,
    SHARED_C: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """One chunk of one sequence's rows against one block of the queries of one group.

    Grid: (B · G, splits, blocks of queries). Writes what `merge` needs: the weighted sum of the values, the largest
    score in base 2 and the sum of the weights. Float32 accumulation, online softmax (Milakov and Gimelshein, 2018,
    arXiv 1805.02867). Column c of a tile is number `FIRST` + c of the row's own part; `HALF` computes in the queries'
    16 bits.
    """
    compute: tl.constexpr = queries.dtype.element_ty if HALF else tl.float32
    own_key: tl.constexpr = KEY_STOP - KEY_START
    key_dim: tl.constexpr = own_key + SHARED_DIM
    pair = tl.program_id(0).to(tl.int64)
    split, splits = tl.program_id(1), tl.num_programs(1)
    b, g = pair // GROUPS, pair % GROUPS

    start = 0
    if starts is not None:
        start = tl.maximum(tl.load(starts + b), 0).to(tl.int32)
    length = rows
    if lengths is not None:
        length = tl.minimum(tl.load(lengths + b), rows).to(tl.int32)
    low = start
    if window is not None:
        low = tl.maximum(start, length - (POSITIONS - 1) - window)
    # Tiles begin at multiples of N, so that a chunk's border never depends on where a sequence starts.
    first_tile = low // N
    per_split = tl.cdiv(tl.maximum(tl.cdiv(length, N) - first_tile, 0), splits)
    begin = first_tile + split * per_split
    end = tl.minimum(begin + per_split, tl.cdiv(length, N))

    m_M = tl.program_id(2) * M + tl.arange(0, M)
    there_M = m_M < QUERIES
    last_M = length - (POSITIONS - 1 - m_M % POSITIONS)
    n_N = tl.arange(0, N)
    c_C = FIRST + tl.arange(0, C)
    in_key_C = (c_C >= KEY_START) & (c_C < KEY_STOP)
    in_tile_C = in_key_C
    if ONE_TILE:
        in_tile_C = in_key_C | ((c_C >= VALUE_START) & (c_C < VALUE_STOP))
    v_C = (FIRST if ONE_TILE else VALUE_START) + tl.arange(0, VALUE_C)
    in_value_C = (v_C >= VALUE_START) & (v_C < VALUE_STOP)
    shared_C = tl.arange(0, SHARED_C)

    query_at_M = (pair * QUERIES + m_M) * key_dim
    own_MC = query_at_M[:, None] + (c_C - KEY_START)[None, :]
    own_mask_MC = there_M[:, None] & in_key_C[None, :]
    query_MC = tl.load(queries + own_MC, mask=own_mask_MC, other=0.0).to(compute)
    if shared is not None:
        rest_MC = query_at_M[:, None] + (own_key + shared_C)[None, :]
        rest_mask_MC = there_M[:, None] & (shared_C < SHARED_DIM)[None, :]
        shared_query_MC = tl.load(queries + rest_MC, mask=rest_mask_MC, other=0.0).to(compute)
    if partners is not None:
        partner_MC = tl.load(partners + own_MC, mask=own_mask_MC, other=0.0).to(compute)
        if shared is not None:
            shared_partner_MC = tl.load(partners + rest_MC, mask=rest_mask_MC, other=0.0).to(compute)

    heads += b * heads_stride_B + g * heads_stride_G
    if shared is not None:
        shared += b * shared_stride_B + SHARED_START
    if scales is not None:
        scales += b * scales_stride_B + g * scales_stride_G
        if shared is not None:
            shared_scales += b * shared_scales_stride_B

    top_M = tl.full([M], float("-inf"), tl.float32)
    weight_M = tl.zeros([M], tl.float32)
    sum_MC = tl.zeros([M, VALUE_C], tl.float32)
    for tile in tl.range(begin, end, num_stages=STAGES):
        s_N = tile * N + n_N
        # Rows that nobody sees are not loaded: they may hold NaN, which a weight of 0 does not silence.
        seen_N = (s_N >= low) & (s_N < length)
        first_row = tl.cast(tile * N, tl.int64)
        at_N = n_N * heads_stride_S
        row = heads + first_row * heads_stride_S
        rows_NC = tl.load(row + at_N[:, None] + c_C[None, :], mask=seen_N[:, None] & in_tile_C[None, :], other=0)
        rows_NC = rows_NC.to(compute)
        key_NC = rows_NC
        if ONE_TILE and (KEY_START != VALUE_START or KEY_STOP != VALUE_STOP):
            key_NC = tl.where(in_key_C[None, :], rows_NC, 0.0)  # a value's NaN is no score's
        if partners is not None:
            dims_C = c_C - KEY_START
            score_MN = _turned_products(query_MC, partner_MC, key_NC, bases, offsets, dims_C, tile, key_dim, N, DOT)
        else:
            score_MN = _products(query_MC, key_NC, DOT)
        if scales is not None:
            step_N = tl.load(scales + (first_row + n_N) * scales_stride_S, mask=seen_N, other=0.0)
            score_MN *= step_N[None, :]
        if shared is not None:
            shared_NC = tl.load(
                shared + first_row * shared_stride_S + (n_N * shared_stride_S)[:, None] + shared_C[None, :],
                mask=seen_N[:, None] & (shared_C < SHARED_DIM)[None, :],
                other=0,
            ).to(compute)
            if partners is not None:
                dims_C = own_key + shared_C
                extra_MN = _turned_products(
                    shared_query_MC, shared_partner_MC, shared_NC, bases, offsets, dims_C, tile, key_dim, N, DOT
                )
            else:
                extra_MN = _products(shared_query_MC, shared_NC, DOT)
            if scales is not None:
                step_at_N = shared_scales + (first_row + n_N) * shared_scales_stride_S
                extra_MN *= tl.load(step_at_N, mask=seen_N, other=0.0)[None, :]
            score_MN += extra_MN

        score_MN *= scale
        if CAPPED:
            score_MN = softcap * _tanh(score_MN / softcap)
        sees_MN = seen_N[None, :] & (s_N[None, :] < last_M[:, None])
        if window is not None:
            sees_MN = sees_MN & (s_N[None, :] >= last_M[:, None] - window)
        score_MN = tl.where(sees_MN, score_MN * LOG2_E, float("-inf"))

        higher_M = tl.maximum(top_M, tl.max(score_MN, 1))
        base_M = tl.where(higher_M == float("-inf"), 0.0, higher_M)
        fade_M = tl.exp2(top_M - base_M)
        part_MN = tl.exp2(score_MN - base_M[:, None])
        weight_M = weight_M * fade_M + tl.sum(part_MN, 1)
        top_M = higher_M
        if scales is not None:
            part_MN *= step_N[None, :]
        if ONE_TILE:
            value_NC = rows_NC
        else:
            value_NC = tl.load(
                row + at_N[:, None] + v_C[None, :], mask=seen_N[:, None] & in_value_C[None, :], other=0
            ).to(compute)
        if DOT:
            sum_MC = tl.dot(part_MN.to(compute), value_NC, sum_MC * fade_M[:, None], input_precision="tf32x3")
        else:
            sum_MC = sum_MC * fade_M[:, None] + tl.sum(part_MN[:, :, None] * value_NC[None, :, :], 1)

    state_M = (pair * QUERIES + m_M) * splits + split
    tl.store(maxima + state_M, top_M, mask=there_M)
    tl.store(weights + state_M, weight_M, mask=there_M)
    sum_at_MC = state_M[:, None] * (VALUE_STOP - VALUE_START) + (v_C - VALUE_START)[None, :]
    tl.store(sums + sum_at_MC, sum_MC, mask=there_M[:, None] & in_value_C[None, :])


@triton.jit(do_not_specialize=["splits"])
def merge(
    sums: tl.tensor,
    maxima: tl.tensor,
    weights: tl.tensor,
    out: tl.tensor,
    splits: tl.tensor,
    DIM: tl.constexpr,
    K: tl.constexpr,
    C: tl.constexpr,
) -> None:
    """The output of one query: its partial results, each times 2 to its maximum, over their weights; 0 without rows.

    Grid: (B · H · T,). Takes K partial results at a time.
    """
    query = tl.program_id(0).to(tl.int64)
    k_K, c_C = tl.arange(0, K), tl.arange(0, C)
    sums += query * splits * DIM
    top_K = tl.full([K], float("-inf"), tl.float32)
    for first in tl.range(0, splits, K):
        there_K = first + k_K < splits
        at_K = query * splits + first + k_K
        top_K = tl.maximum(top_K, tl.load(maxima + at_K, mask=there_K, other=float("-inf")))
    top = tl.max(top_K, 0)
    top = tl.where(top == float("-inf"), 0.0, top)
    weight_K = tl.zeros([K], tl.float32)
    sum_C = tl.zeros([C], tl.float32)
    for first in tl.range(0, splits, K):
        there_K = first + k_K < splits
        at_K = query * splits + first + k_K
        factor_K = tl.exp2(tl.load(maxima + at_K, mask=there_K, other=float("-inf")) - top)
        weight_K += factor_K * tl.load(weights + at_K, mask=there_K, other=0.0)
        part_KC = tl.load(
            sums + (first + k_K)[:, None] * DIM + c_C[None, :], mask=there_K[:, None] & (c_C < DIM)[None, :], other=0.0
        )
        sum_C += tl.sum(part_KC * factor_K[:, None], 0)
    weight = tl.sum(weight_K, 0)
    read_C = sum_C / tl.where(weight == 0.0, 1.0, weight)
    tl.store(out + query * DIM + c_C, read_C.to(out.dtype.element_ty), mask=c_C < DIM)
