"""The operators, as functions. Written by `python -m ortops.docs` from the declarations."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ortops.graph import Value

#: A value of a graph, or an array: with a value among its inputs an operator appends a node and returns its results as
#: values; with arrays alone it computes in float64 and returns arrays. One result is returned as it is, more as a tuple.
Tensor = Value | np.ndarray

__all__ = [
    "broadcast_to",
    "concatenate",
    "concatenate_gradient",
    "constant_pad",
    "elementwise",
    "embedding",
    "embedding_bag",
    "embedding_bag_gradient",
    "embedding_bag_weights_gradient",
    "group_norm",
    "group_norm_gradient",
    "identity",
    "layer_norm",
    "layer_norm_gradient",
    "linear",
    "packed_qkv_attention",
    "pad_gradient",
    "permute",
    "rms_norm",
    "rms_norm_gradient",
    "scaled_dot_product_attention",
    "scatter_add",
    "scatter_add_gradient",
    "select_top_k",
    "sequence_pool",
    "strided_slice",
    "strided_slice_gradient",
    "sum_to_size",
    "take",
    "take_along_axis",
    "take_along_axis_gradient",
    "take_gradient",
    "upsample2d",
    "upsample2d_gradient",
]

def broadcast_to(
    x: Tensor,
    shape: Tensor | Sequence[int],
    *,
    outputs: Sequence[str] | None = None,
) -> Any:
    """Repeats x along its axes of size 1, and along new ones in front, to the shape that it and the given one broadcast to.

    As ONNX's Expand, a size of 1 in `shape` keeps the size that x has there, and `shape` may have fewer axes than x. An axis
    of size 1 may be broadcast to size 0. A negative size is an error. At most 16 axes.
    """

def concatenate(
    *xs: Tensor,
    axis: int,
    outputs: Sequence[str] | None = None,
) -> Any:
    """Puts tensors behind each other along an axis.

    Any number of them from one on, of one rank and of sizes that differ in that axis alone. A negative axis counts from the end.
    """

def concatenate_gradient(
    d_y: Tensor,
    *xs: Tensor,
    axis: int,
    index: int,
    outputs: Sequence[str] | None = None,
) -> Any:
    """The gradient of one input of Concatenate: its part of d_y.

    Of the inputs only the shapes are read; `index` says which one it is.
    """

def constant_pad(
    x: Tensor,
    *,
    pads: Sequence[int],
    axes: Sequence[int] = (),
    mode: Literal["constant", "reflect", "replicate", "circular"] = "constant",
    value: float = 0.0,
    outputs: Sequence[str] | None = None,
) -> Any:
    """Pads or crops the axes of x: with a value, or with elements of x.

    `pads` is in ONNX's order: what goes before each of `axes` (none given: all axes), then what goes behind each. Negative pads
    crop, before anything is added. Modes: "constant" adds `value`; "reflect" mirrors at the first and last element, fewer than
    the axis has; "replicate" repeats them; "circular" goes on at the other end, at most once around. Cropping more than there
    is, or a pad too long for its mode, is an error; a result without elements is none. `value` is a float32 that is converted to
    the type of x: rounded for floats; for integers toward zero, and the type's least or greatest if it is beyond those (so an
    integer above 2^24 is exact only where float32 can hold it); for bool, whether it is not 0.
    """

def elementwise(
    *xs: Tensor,
    expression: str,
    outputs: Sequence[str] | None = None,
) -> Any:
    """Computes an expression of its inputs, element by element, in one pass over memory: `"silu(x0) * x1"`,
    `"where(x2, x0 + x1, 0)"`, `"float16(x0 > x1)"`.

    The inputs x0, x1, .. broadcast, and each has a type of its own. Reals are computed in float32 (in float64 where an input or a
    cast is of float64, on the CPU alone) and rounded when they are stored or cast; integers in 64 bits, and wrapped when they are
    stored. The result is a boolean of a comparison, what a cast says, and else of the type that the inputs are promoted to:
    bool < integers < floats, two different floats to float32. Its ONNX op type names it: ElementwiseFloat16, ElementwiseBool, ..

    Functions, operators and their precedence are in docs/elementwise.md; NaN and remainders are as in PyTorch. An integer divided
    by zero is 0. An expression that is none is an error that points at the character, when the graph is built and when a session
    is made.
    """

def embedding(
    indices: Tensor,
    table: Tensor,
    residual: Tensor | None = None,
    *,
    padding_idx: int | None = None,
    outputs: Sequence[str] | None = None,
) -> Any:
    """Looks up a row of the table for each index, and adds the residual if there is one (say, the position embeddings).

    A negative index counts from the end. One outside of [-V, V-1] is an error on the CPU; on CUDA that row becomes NaN, or an
    error too in a session with the option `ortops.check_indices`. As in PyTorch, `padding_idx` does not change what comes out:
    it names the row that gets no gradient.
    """

def embedding_bag(
    indices: Tensor,
    table: Tensor,
    offsets: Tensor | None = None,
    weights: Tensor | None = None,
    *,
    mode: Literal["sum", "mean", "max"] = "mean",
    padding_idx: int | None = None,
    include_last_offset: bool = False,
    outputs: Sequence[str] | None = None,
) -> Any:
    """Looks up the rows of each bag of indices, and gives their sum, mean or maximum.

    As torch.nn.functional.embedding_bag: a matrix of indices has a bag a row; in a line of them, bag i begins at offsets[i] and
    ends where the next one begins, the last one with the indices, or, with `include_last_offset`, at the last offset. `weights`
    are factors of the rows, in the mode "sum" alone. Indices that name the row `padding_idx` are left out, and not counted. An
    empty bag gives zeros.

    Sums are formed in float32 (float64 for float64). A maximum is NaN where one of the values is. A negative index counts from
    the end. An index outside of [-V, V-1], and offsets that do not begin at 0, decrease or pass the number of indices, are errors
    on the CPU; on CUDA such an index makes its bag NaN, such an offset is moved to the nearest valid one, and both are errors in
    a session with the option `ortops.check_indices`.
    """

def embedding_bag_gradient(
    d_y: Tensor,
    indices: Tensor,
    table: Tensor,
    offsets: Tensor | None = None,
    weights: Tensor | None = None,
    *,
    mode: Literal["sum", "mean", "max"] = "mean",
    padding_idx: int | None = None,
    include_last_offset: bool = False,
    outputs: Sequence[str] | None = None,
) -> Any:
    """The gradient of EmbeddingBag's table: the sum, for each row, of what reaches the bags it is in; the same bits every time.

    A maximum's gradient goes to the first of the bag's rows that has it (the first NaN where there is one). The table's values are
    read in that mode alone. Inputs that are errors for EmbeddingBag are errors here; on CUDA such an index is passed over.
    """

def embedding_bag_weights_gradient(
    d_y: Tensor,
    indices: Tensor,
    table: Tensor,
    offsets: Tensor | None = None,
    *,
    padding_idx: int | None = None,
    include_last_offset: bool = False,
    outputs: Sequence[str] | None = None,
) -> Any:
    """The gradient of EmbeddingBag's weights: for each index the product of its row and what reaches its bag.

    0 for padding, and for indices that are in no bag. Inputs that are errors for EmbeddingBag are errors here; on CUDA such an
    index gives NaN.
    """

def group_norm(
    x: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    groups: int,
    epsilon: float = 1e-05,
    activation: Literal["none", "silu"] = "none",
    layout: Literal["NCHW", "NHWC"] = "NCHW",
    outputs: Sequence[str] | None = None,
) -> Any:
    """Subtracts the mean of each group of channels, divides by its standard deviation, scales and shifts each channel, then applies
    SiLU where asked. (Wu & He, 2018)

    x is [N, C, *D] or, in the layout NHWC, [N, *D, C], of any number of axes *D; C is a multiple of `groups`. The statistics
    are taken in float32, of the distances from the mean: a mean far from 0 costs nothing. `mean` and `rstd` (1 / standard
    deviation) are kept for the gradient; of a group without elements they are NaN.
    """

def group_norm_gradient(
    d_y: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    groups: int,
    activation: Literal["none", "silu"] = "none",
    layout: Literal["NCHW", "NHWC"] = "NCHW",
    outputs: Sequence[str] | None = None,
) -> Any:
    """The gradient of GroupNorm, of the mean and rstd that it gave.

    d_scale and d_bias are sums in float32, in an order that depends on the shape alone; of an empty x they are zeros.
    """

def identity(
    x: Tensor,
    *,
    outputs: Sequence[str] | None = None,
) -> Any:
    """Copies x."""

def layer_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    epsilon: float = 1e-05,
    outputs: Sequence[str] | None = None,
) -> Any:
    """Subtracts the mean of each row, divides by its standard deviation, then scales and shifts it. (Ba et al., 2016)

    A row is the axes that `scale` has. With `residual`, it is x + residual that is normalised, and the output `sum` is that
    sum, rounded to the type of x, so that add and norm are one pass over memory. The statistics are taken in float32 of the
    unrounded sum; `mean` and `rstd` (1 / standard deviation) are kept for the gradient.
    """

def layer_norm_gradient(
    d_y: Tensor,
    x: Tensor,
    scale: Tensor,
    mean: Tensor,
    rstd: Tensor,
    residual: Tensor | None = None,
    d_sum: Tensor | None = None,
    *,
    outputs: Sequence[str] | None = None,
) -> Any:
    """The gradient of LayerNorm, of the mean and rstd that it gave.

    x and residual are as they were there; or x is the output `sum`, without a residual. What arrives at `sum` is added to d_x,
    which is the gradient of the residual as well. d_scale and d_bias are sums over all rows, taken in float32 in an order that
    depends on the shape alone; of no rows they are zeros.
    """

def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"] = "none",
    weight_layout: Literal["in_out", "out_in"] = "in_out",
    outputs: Sequence[str] | None = None,
) -> Any:
    """activation(x weight + bias) + residual: a matrix product and what comes after it, in one operator.

    The weight is [in, out] as ONNX's MatMul has it, or [out, in] as PyTorch's Linear. `gelu` is the exact one with the error
    function, `gelu_tanh` its approximation (Hendrycks & Gimpel, 2016). Products are accumulated in float32.
    """

def packed_qkv_attention(
    qkv: Tensor,
    mask: Tensor | None = None,
    *,
    heads: int,
    kv_heads: int,
    scale: float | None = None,
    causal: bool = False,
    outputs: Sequence[str] | None = None,
) -> Any:
    """ScaledDotProductAttention of one tensor that holds all query heads, then all key heads, then all value heads.

    That is what one Linear writes for all three, its result [B, S, (heads + 2 kv_heads) D] seen as [B, S, heads + 2 kv_heads, D]:
    they are read where they lie. Mask, scale and limits are those of ScaledDotProductAttention, here with as many keys as
    queries; with `causal` position i sees the positions up to i. kv_heads divides heads.
    """

def pad_gradient(
    d_y: Tensor,
    *,
    pads: Sequence[int],
    axes: Sequence[int] = (),
    mode: Literal["reflect", "replicate", "circular"],
    outputs: Sequence[str] | None = None,
) -> Any:
    """The gradient of ConstantPad in the modes other than "constant": each element's own and those of its copies, summed.

    What was cropped gets zeros. The sum is in float32 (float64 for that type), in a fixed order.
    """

def permute(
    x: Tensor,
    *,
    perm: Sequence[int] = (),
    outputs: Sequence[str] | None = None,
) -> Any:
    """Puts the axes of x in another order: axis i of y is axis `perm[i]` of x.

    A negative axis counts from the end; without `perm` the order is reversed, as ONNX's Transpose has it. An axis that is
    missing, or there twice, is an error. At most 16 axes. (PyTorch's Tensor.permute)
    """

def rms_norm(
    x: Tensor,
    scale: Tensor,
    residual: Tensor | None = None,
    *,
    epsilon: float = 1e-05,
    outputs: Sequence[str] | None = None,
) -> Any:
    """Divides each row by its root mean square, then scales it. (Zhang & Sennrich, 2019)

    Rows, `residual`, `sum` and `rstd` are as in LayerNorm.
    """

def rms_norm_gradient(
    d_y: Tensor,
    x: Tensor,
    scale: Tensor,
    rstd: Tensor,
    residual: Tensor | None = None,
    d_sum: Tensor | None = None,
    *,
    outputs: Sequence[str] | None = None,
) -> Any:
    """The gradient of RMSNorm, of the rstd that it gave.

    Inputs and outputs are as in LayerNormGradient.
    """

def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    causal: Literal["none", "top_left", "bottom_right"] = "none",
    layout: Literal["BHSD", "BSHD"] = "BHSD",
    outputs: Sequence[str] | None = None,
) -> Any:
    """softmax(scale query key^T + mask) value, without ever holding the matrix of scores. (Vaswani et al., 2017; Dao, 2023)

    H is a multiple of Hkv: each key and value head serves H / Hkv query heads (Ainslie et al., 2023). `scale` is 1 / sqrt(D)
    unless given. A boolean mask keeps where it is true; one of T is added to the scores. `causal` keeps for query i the keys up
    to i (top_left, as torch's is_causal and ONNX's Attention have it) or up to i + Skv - Sq (bottom_right, as with a cache). A
    query that no key is kept for gives zeros. Head sizes D and Dv from 1 to 512.
    """

def scatter_add(
    x: Tensor,
    indices: Tensor,
    updates: Tensor,
    *,
    axis: int = 0,
    reduction: Literal["add", "mul", "min", "max"] = "add",
    deterministic: bool = False,
    outputs: Sequence[str] | None = None,
) -> Any:
    """Combines each update into the element of x that its index names along an axis, duplicates too (ONNX's ScatterElements).

    As PyTorch's scatter_reduce with include_self. The updates have the rank of x and are no larger but along the axis. The indices
    broadcast to their shape: one for each update, or [N, 1] for rows [N, D] (PyTorch's index_add). A negative index counts from the
    end; one outside of the axis is an error on the CPU, on CUDA its update is left out (an error too in a session with the option
    `ortops.check_indices`). NaN wins in every reduction. Everything is computed in float32 (float64 in float64) and rounded once.
    The order in which duplicates are added may vary on CUDA; with `deterministic` it does not.
    """

def scatter_add_gradient(
    d_y: Tensor,
    indices: Tensor,
    updates: Tensor,
    *,
    axis: int = 0,
    outputs: Sequence[str] | None = None,
) -> Any:
    """Gives each update of a ScatterAdd the gradient of the element that it was added to.

    TakeAlongAxis with indices that broadcast to the shape of the updates, which are not read otherwise.
    """

def select_top_k(
    x: Tensor,
    k_input: Tensor | Sequence[int] | None = None,
    *,
    k: int | None = None,
    axis: int = -1,
    largest: bool = True,
    sorted: bool = True,
    outputs: Sequence[str] | None = None,
) -> Any:
    """Selects the k largest (or smallest) elements along an axis, and gives them with their indices.

    k is an attribute (k=5) or an input (int64 of shape [1]), not both; without either the whole axis is taken, a stable sort. A k
    below 0 or beyond the size of the axis is an error, and so is an input without axes. `sorted`: the best first; else in the order
    of indices.

    The result is always the same: of equal values the one with the lower index is taken first (0 and -0 are equal), NaN counts as
    larger than infinity, so that it comes last where the smallest are wanted, and a row's result does not depend on the rows beside
    it. (ONNX TopK; torch.topk, which leaves the indices of equal values open)
    """

def sequence_pool(
    x: Tensor,
    mask: Tensor,
    *,
    mode: Literal["mean", "max", "first"] = "mean",
    normalize: bool = False,
    outputs: Sequence[str] | None = None,
) -> Any:
    """Reduces each sequence to one vector: the mean, the maximum or the first of the vectors that its mask keeps (is not 0).

    `normalize` then divides the vector by its Euclidean length (at least 1e-12, as torch.nn.functional.normalize has it). A
    sequence of which nothing is kept gives zeros. (Reimers & Gurevych, 2019, for the mean)
    """

def strided_slice(
    x: Tensor,
    *,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] = (),
    steps: Sequence[int] = (),
    outputs: Sequence[str] | None = None,
) -> Any:
    """Takes every step-th element of each axis, from start until before end, by the rules of numpy's x[start:end:step].

    Without `axes` the first axes are meant, without `steps` each is 1. A negative start or end counts from the end of its axis, and
    what lies outside is moved to the nearest end, so that 2^63-1 means the end and, for a negative step, -2^63 the place before
    the first element. A slice that holds nothing has no elements. A step of 0 is an error.
    """

def strided_slice_gradient(
    d_y: Tensor,
    x: Tensor,
    *,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] = (),
    steps: Sequence[int] = (),
    outputs: Sequence[str] | None = None,
) -> Any:
    """The gradient of StridedSlice: d_y put back into place, and zeros elsewhere.

    Of x only the shape is read.
    """

def sum_to_size(
    x: Tensor,
    like: Tensor,
    *,
    outputs: Sequence[str] | None = None,
) -> Any:
    """Adds x up along the axes in which `like`, which broadcasts to x, has size 1 or is missing: the gradient of BroadcastTo.

    Of `like` only the shape is looked at. 16-bit types are added up in float32, and rounded once; the same input gives the same
    bits. Where nothing is added up (an axis of size 0 becomes 1) the sum is 0. (PyTorch's Tensor.sum_to_size)
    """

def take(
    x: Tensor,
    indices: Tensor,
    *,
    axis: int = 0,
    outputs: Sequence[str] | None = None,
) -> Any:
    """Reads the slices of x that the indices name along an axis (numpy's take, ONNX's Gather).

    x of shape [*A, V, *B], V being the axis, and indices of any shape [*J] give [*A, *J, *B]. A negative index counts from the
    end. One outside of [-V, V-1] is an error on the CPU; on CUDA its elements get all bits set (NaN; -1 in integers; one-byte
    types get 0), or it is an error too in a session with the option `ortops.check_indices`.
    """

def take_along_axis(
    x: Tensor,
    indices: Tensor,
    *,
    axis: int = 0,
    outputs: Sequence[str] | None = None,
) -> Any:
    """Reads for each index the element that it names along an axis (PyTorch's gather, ONNX's GatherElements).

    y[.., i, ..] = x[.., indices[.., i, ..], ..]. The indices have the rank of x and are no larger but along the axis; y has their
    shape. A negative index counts from the end; what one out of range gives is said at Take.
    """

def take_along_axis_gradient(
    d_y: Tensor,
    indices: Tensor,
    x: Tensor,
    *,
    axis: int = 0,
    deterministic: bool = False,
    outputs: Sequence[str] | None = None,
) -> Any:
    """Gives each element of x the sum of the gradients of the elements that TakeAlongAxis read from it, else zero.

    Of x only the shape is used. Sums are accumulated in float32 and rounded once; indices are as for ScatterAdd, and so is the
    order in which duplicates are added.
    """

def take_gradient(
    d_y: Tensor,
    indices: Tensor,
    x: Tensor,
    *,
    axis: int = 0,
    padding_idx: int | None = None,
    outputs: Sequence[str] | None = None,
) -> Any:
    """Gives each slice of x the sum of the gradients of the slices that Take, or Embedding, read from it, else zero.

    Of x only the shape is used. d_y is [*A, *J, *B], as Take gives it. Indices equal to `padding_idx` (negative: from the end) add
    nothing. An index out of range is an error on the CPU and adds nothing on CUDA. Sums are accumulated in float32, rounded once,
    and the same bits in every run.
    """

def upsample2d(
    x: Tensor,
    *,
    mode: Literal["nearest", "bilinear"] = "nearest",
    size: Sequence[int] = (),
    scale: Sequence[float] = (),
    align_corners: bool = False,
    layout: Literal["NCHW", "NHWC"] = "NCHW",
    outputs: Sequence[str] | None = None,
) -> Any:
    """Resizes planes to `size` or by `scale` (height, width), up or down, as PyTorch's `interpolate` does: nearest or bilinear.

    Just one of the two is given. A scale gives a result of floor(scale * extent) pixels, and, unless corners are aligned, is
    itself the distance between them, as in PyTorch without `recompute_scale_factor`. A node holds it in float32: what is meant is the
    fraction of the smallest denominator that rounds to that (1.1 is 11/10).

    - nearest: pixel j is source pixel floor(j * in / out), in integers; with a scale floor(j * (1 / scale)), in float32, as in PyTorch.
      (PyTorch rounds to float32 with a size, too, and is a pixel off where j * in / out is a whole number, for some sizes.)
    - bilinear: pixel j lies at (j + 0.5) * in / out - 0.5, with a scale at (j + 0.5) / scale - 0.5, but not in front of the first
      pixel nor behind the last. With `align_corners` it lies at j * (in - 1) / (out - 1), and at 0 where the result has one pixel.

    There is no antialiasing. Planes of no pixels are an error, in x as in y; no planes are none.

    In ONNX's words: nearest is Resize with `asymmetric` and `floor`, bilinear with `half_pixel` (not `pytorch_half_pixel`, which takes
    the first pixel where the result has one, as PyTorch no longer does) or `align_corners`.
    """

def upsample2d_gradient(
    d_y: Tensor,
    x: Tensor,
    *,
    mode: Literal["nearest", "bilinear"] = "nearest",
    size: Sequence[int] = (),
    scale: Sequence[float] = (),
    align_corners: bool = False,
    layout: Literal["NCHW", "NHWC"] = "NCHW",
    outputs: Sequence[str] | None = None,
) -> Any:
    """The gradient of Upsample2D: each source pixel gets what the pixels that were made of it pass back, by their shares.

    Of x nothing but the shape is used. The sum is in float32 (float64 for float64) and in an order that does not change.
    """
