"""What is particular to Upsample2D and its gradient."""

from __future__ import annotations

import numpy as np
import pytest

import ortops
from ortops import OpError, ops, testing
from ortops._declare import element_type, find
from ortops._shapes import exact_scale
from ortops.ops.resize import from_resize, taps

UPSAMPLE = find("Upsample2D")
GRADIENT = find("Upsample2DGradient")
assert UPSAMPLE is not None
assert GRADIENT is not None
every_provider = pytest.mark.parametrize("provider", [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)])
MODES = [("nearest", False), ("bilinear", False), ("bilinear", True)]


def run(provider, x, dtype="float32", **attributes):
    array = np.asarray(x).astype(element_type(dtype))
    return testing.run(testing.Sample(UPSAMPLE, "", {"T": dtype}, (array,), attributes, ("y",)), provider)[0]


def run_gradient(provider, d_y, x, dtype="float32", **attributes):
    arrays = tuple(np.asarray(a).astype(element_type(dtype)) for a in (d_y, x))
    return testing.run(testing.Sample(GRADIENT, "", {"T": dtype}, arrays, attributes, ("d_x",)), provider)[0]


def torch_call(x, mode, size=(), scale=(), align_corners=False, layout="NCHW"):
    """PyTorch's result, and a function from a gradient of it to that of x."""
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(x if layout == "NCHW" else np.moveaxis(x, 3, 1).copy()).requires_grad_()
    y = torch.nn.functional.interpolate(
        tensor,
        size=size or None,
        scale_factor=scale or None,
        mode=mode,
        align_corners=align_corners if mode == "bilinear" else None,
    )

    def backward(d_y):
        y.backward(torch.from_numpy(d_y if layout == "NCHW" else np.moveaxis(d_y, 3, 1).copy()))
        return tensor.grad.numpy() if layout == "NCHW" else np.moveaxis(tensor.grad.numpy(), 1, 3)

    return y.detach().numpy() if layout == "NCHW" else np.moveaxis(y.detach().numpy(), 1, 3), backward


def whole(extents, size):
    """Whether j * in / out is a whole number but for those j that are exact in float32 too: there PyTorch may be a pixel off."""
    return any(
        np.floor(np.arange(out, dtype=np.float32) * np.float32(np.float32(extent) / np.float32(out))).tolist()
        != [j * extent // out for j in range(out)]
        for extent, out in zip(extents, size, strict=True)
    )


def random_calls(count, seed):
    rng = np.random.default_rng(seed)
    scales = [0.1, 0.3, 0.5, 2 / 3, 0.7, 0.99, 1.0, 1.1, 4 / 3, 1.5, 2, 2.5, 2.7, 3, 4, 7]
    while count:
        n, c, h, w = (int(v) for v in (rng.integers(1, 3), rng.integers(1, 5), *rng.integers(1, 40, 2)))
        mode, align_corners = MODES[rng.integers(3)]
        layout = str(rng.choice(["NCHW", "NHWC"]))
        given = {"mode": mode, "align_corners": align_corners, "layout": layout}
        if rng.random() < 0.5:
            given["size"] = tuple(int(v) for v in rng.integers(1, 70, 2))
            if mode == "nearest" and whole((h, w), given["size"]):
                continue
        else:
            given["scale"] = tuple(float(scales[i]) for i in rng.integers(0, len(scales), 2))
            if h * given["scale"][0] < 1 or w * given["scale"][1] < 1:
                continue
        count -= 1
        yield rng.standard_normal((n, c, h, w) if layout == "NCHW" else (n, h, w, c)).astype(np.float32), given


@every_provider
def test_random_calls_are_as_in_pytorch_forward_and_backward(provider: str) -> None:
    """Tolerances are those of PyTorch's weights: positions of up to 70 pixels in float32 are known to 70 * 2^-24."""
    for x, given in random_calls(40, 3):
        want, backward = torch_call(x, **given)
        got = run(provider, x, **given)
        assert got.shape == want.shape, given
        np.testing.assert_allclose(
            got, want, rtol=0, atol=0 if given["mode"] == "nearest" else 3e-5, err_msg=str(given)
        )
        d_y = np.random.default_rng(4).standard_normal(want.shape).astype(np.float32)
        np.testing.assert_allclose(
            run_gradient(provider, d_y, x, **given), backward(d_y), rtol=1e-4, atol=1e-4, err_msg=str(given)
        )


def test_the_reference_is_pytorchs_in_float64() -> None:
    for x, given in random_calls(100, 5):
        if given["mode"] == "nearest" and "scale" in given:
            continue  # PyTorch rounds the scale to the type of the tensors
        want, backward = torch_call(x.astype(np.float64), **given)
        np.testing.assert_allclose(ops.upsample2d(x.astype(np.float64), **given), want, rtol=0, atol=1e-12)
        d_y = np.random.default_rng(6).standard_normal(want.shape)
        got = ops.upsample2d_gradient(d_y, x.astype(np.float64), **given)
        np.testing.assert_allclose(got, backward(d_y), rtol=1e-11, atol=1e-11)


@every_provider
def test_o05_nearest_26_to_64(provider: str) -> None:
    """https://github.com/microsoft/onnxruntime/issues/12098: a rounded scale takes column 12 for 13, in the middle."""
    x = 100.0 + np.arange(26).reshape(1, 1, 1, 26)
    want = 100 + np.arange(64) * 26 // 64
    assert want[32] == 113
    np.testing.assert_array_equal(run(provider, x, size=(1, 64)).ravel(), want)
    sample = testing.Sample(UPSAMPLE, "", {"T": "float32"}, (x.astype(np.float32),), {"size": (1, 64)}, ("y",))
    np.testing.assert_array_equal(testing.run_body(sample)[0].ravel(), want)


@every_provider
@pytest.mark.parametrize("extent", [2, 41, 80, 300])
def test_nearest_by_size_is_exact(provider: str, extent: int) -> None:
    """Where j * in / out is a whole number too, which float32 misses (80 to 82, say)."""
    for out in (*range(1, 420), 100_003):
        at = taps(extent, 1, mode="nearest", size=(1, out))[0]
        np.testing.assert_array_equal(at, np.arange(out) * extent // out)
    x = np.arange(extent).reshape(1, 1, 1, extent)
    for out in (1, extent + extent // 40, 164, 100_003):
        np.testing.assert_array_equal(run(provider, x, size=(1, out)).ravel(), np.arange(out) * extent // out)


@every_provider
def test_o07_bilinear_to_one_pixel(provider: str) -> None:
    """https://github.com/onnx/onnx/issues/4276: the middle of the row, or with corners aligned its first pixel."""
    x = (np.arange(8) ** 2 + 3).reshape(1, 1, 1, 8)
    for align_corners, want in ((False, 15.5), (True, 3.0)):
        given = {"mode": "bilinear", "size": (1, 1), "align_corners": align_corners}
        assert run(provider, x, **given).item() == want
        sample = testing.Sample(UPSAMPLE, "", {"T": "float32"}, (x.astype(np.float32),), given, ("y",))
        assert testing.run_body(sample)[0].item() == want


@every_provider
def test_corners_and_centre_by_hand(provider: str) -> None:
    x = np.array([[0.0, 8.0], [16.0, 32.0]]).reshape(1, 1, 2, 2)
    y = run(provider, x, mode="bilinear", scale=(2, 2))[0, 0]
    assert [y[0, 0], y[0, 3], y[3, 0], y[3, 3]] == [0, 8, 16, 32]  # what lies outside is the edge
    assert y[0, 1] == 2  # a quarter of the way
    assert y[1, 1] == 0.75 * (0.75 * 0 + 0.25 * 8) + 0.25 * (0.75 * 16 + 0.25 * 32)
    y = run(provider, x, mode="bilinear", size=(3, 3), align_corners=True)[0, 0]
    np.testing.assert_array_equal(y, [[0, 4, 8], [8, 14, 20], [16, 24, 32]])
    y = run(provider, x, size=(3, 3))[0, 0]
    np.testing.assert_array_equal(y, [[0, 0, 8], [0, 0, 8], [16, 16, 32]])
    d_x = run_gradient(provider, np.ones((1, 1, 3, 3)), x, mode="bilinear", size=(3, 3), align_corners=True)[0, 0]
    np.testing.assert_array_equal(d_x, np.full((2, 2), 2.25))
    d_x = run_gradient(provider, np.ones((1, 1, 3, 3)), x, size=(3, 3))[0, 0]
    np.testing.assert_array_equal(d_x, [[4, 2], [2, 1]])


@every_provider
@pytest.mark.parametrize(("mode", "align_corners"), MODES)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_the_gradient_is_the_adjoint(provider: str, mode: str, align_corners: bool, layout: str) -> None:
    """<d_y, f(x)> is <f'(d_y), x>, also in the sizes that have kernels of their own and beside them."""
    rng = np.random.default_rng(7)
    for width, out in (
        (16, 32),
        (24, 48),
        (20, 40),
        (16, 31),
        (33, 17),
        (7, 64),
        (64, 64),
        (40, 200),
        (1, 300),
        (300, 1),
    ):
        x = rng.standard_normal((2, 5, 9, width) if layout == "NCHW" else (2, 9, width, 8))
        given = {"mode": mode, "align_corners": align_corners, "layout": layout, "size": (18, out)}
        y = run(provider, x, **given).astype(np.float64)
        d_y = rng.standard_normal(y.shape)
        d_x = run_gradient(provider, d_y, x, **given).astype(np.float64)
        np.testing.assert_allclose((y * d_y).sum(), (x * d_x).sum(), rtol=1e-5, atol=1e-3 * np.sqrt(y.size) / 30)


@every_provider
def test_more_planes_and_rows_than_a_grid_has_in_y(provider: str) -> None:
    rng = np.random.default_rng(8)
    for shape in ((1, 70_000, 1, 2), (70_000, 1, 2, 1), (1, 1, 66_000, 1), (1, 1, 1, 66_000)):
        x = rng.standard_normal(shape).astype(np.float32)
        for mode in ("nearest", "bilinear"):
            given = {"mode": mode, "scale": (2, 2)}
            np.testing.assert_allclose(run(provider, x, **given), ops.upsample2d(x, **given), rtol=1e-6, atol=1e-6)
            d_y = rng.standard_normal((*shape[:2], 2 * shape[2], 2 * shape[3])).astype(np.float32)
            got = run_gradient(provider, d_y, x, **given)
            np.testing.assert_allclose(got, ops.upsample2d_gradient(d_y, x, **given), rtol=1e-5, atol=1e-5)


@every_provider
@pytest.mark.parametrize(("mode", "align_corners"), MODES)
def test_rows_whose_sums_no_block_can_hold(provider: str, mode: str, align_corners: bool) -> None:
    x = np.zeros((2, 1, 3, 9_001), np.float32)
    for width in (30_001, 2_003):  # up; and down, where it is the columns of x that are many
        d_y = np.random.default_rng(10).standard_normal((2, 1, 5, width)).astype(np.float32)
        given = {"mode": mode, "align_corners": align_corners, "size": d_y.shape[2:]}
        want = ops.upsample2d_gradient(d_y, x, **given)
        np.testing.assert_allclose(run_gradient(provider, d_y, x, **given), want, rtol=1e-5, atol=1e-5)


@every_provider
def test_what_is_not_finite_stays_where_it_is(provider: str) -> None:
    x = np.zeros((1, 1, 16, 16), np.float32)
    x[:, :, 5, 4], x[:, :, 9, 9], x[:, :, 0, 0], x[:, :, 15, 15] = np.nan, np.inf, -np.inf, np.inf
    for mode, given in (
        ("nearest", {"size": (32, 32)}),
        ("bilinear", {"scale": (2, 2)}),
        ("bilinear", {"size": (24, 30)}),
    ):
        want, backward = torch_call(x, mode, **given)
        np.testing.assert_array_equal(np.isfinite(run(provider, x, mode=mode, **given)), np.isfinite(want))
        d_y = np.zeros(want.shape, np.float32)
        d_y[:, :, 3, 7] = np.inf
        np.testing.assert_array_equal(
            np.isfinite(run_gradient(provider, d_y, x, mode=mode, **given)), np.isfinite(backward(d_y))
        )


@pytest.mark.parametrize("scale", [0.7, 1.1, 4 / 3, 2.0, 41.0, 1 / 49, 5 / 7, 1.75, 0.333])
def test_a_scale_of_32_bits_is_the_fraction_that_was_meant(scale: float) -> None:
    assert exact_scale(float(np.float32(scale))) == scale


@pytest.mark.parametrize(
    ("shape", "attributes", "text"),
    [
        ((1, 1, 4, 4), {}, r"attributes size and scale: expected two numbers .* got 0 and 0"),
        ((1, 1, 4, 4), {"size": (3,)}, r"attributes size and scale: .* got 1 and 0"),
        ((1, 1, 4, 4), {"size": (3, 3), "scale": (2.0, 2.0)}, r"attributes size and scale: .* got 2 and 2"),
        ((1, 1, 4, 4), {"size": (3, 0)}, r"attribute size: expected sizes from 1 to 2147483647, got 0"),
        ((1, 1, 4, 4), {"size": (3, -1)}, r"attribute size: expected sizes from 1 to 2147483647, got -1"),
        ((1, 1, 4, 4), {"scale": (2.0, -1.0)}, r"attribute scale: expected finite numbers above 0, got -1"),
        ((1, 1, 4, 4), {"scale": (2.0, 0.1)}, r"attribute scale: expected at least 1 .* got 4 scaled to 0"),
        ((1, 1, 4, 4), {"scale": (2.0, 1e30)}, r"attribute scale: expected at least 1 and less than 2\^31 pixels"),
        ((1, 1, 0, 4), {"size": (3, 3)}, r"x: expected planes of at least one pixel"),
        ((1, 1, 4, 4), {"size": (3, 3), "align_corners": True}, r"attribute align_corners: expected False with mode"),
    ],
)
def test_bad_calls_are_told_when_the_graph_is_built_and_when_it_runs(shape, attributes, text) -> None:
    x = np.zeros(shape, np.float32)
    with pytest.raises(OpError, match=f"Upsample2D: {text}"):
        ops.upsample2d(x, **attributes)
    graph = ortops.Graph()
    with pytest.raises(OpError, match=text):
        ops.upsample2d(graph.input("x", "float32", shape), **attributes)
    model = testing.model_of(
        UPSAMPLE, ("float32",), (4,), testing.node_attributes(UPSAMPLE, attributes), ("y",), ("float32",), (4,)
    )
    with pytest.raises(Exception, match=text):
        testing._session(model, testing.CPU).run(None, {"input0": x})


def test_a_gradient_of_another_size_is_told() -> None:
    with pytest.raises(OpError, match=r"d_y: expected shape .*got \[1, 1, 8, 7\]"):
        ops.upsample2d_gradient(np.zeros((1, 1, 8, 7)), np.zeros((1, 1, 4, 4)), scale=(2.0, 2.0))


def test_a_gradients_bad_attributes_are_told_with_its_name() -> None:
    d_y, x = np.zeros((1, 1, 8, 8)), np.zeros((1, 1, 4, 4))
    text = r"Upsample2DGradient: attribute scale: expected finite numbers above 0, got -1"
    with pytest.raises(OpError, match=text):
        ops.upsample2d_gradient(d_y, x, scale=(2.0, -1.0))
    graph = ortops.Graph()
    with pytest.raises(OpError, match=text):
        ops.upsample2d_gradient(
            graph.input("d_y", "float32", d_y.shape), graph.input("x", "float32", x.shape), scale=(2.0, -1.0)
        )


def test_the_size_is_known_where_that_of_x_is_not() -> None:
    graph = ortops.Graph()
    x = graph.input("x", "float32", ["N", 3, "H", "W"])
    assert ops.upsample2d(x, size=(5, 7)).shape == ("N", 3, 5, 7)
    assert ops.upsample2d(x, scale=(2, 2)).shape[:2] == ("N", 3)


def test_no_planes_are_none() -> None:
    for mode in ("nearest", "bilinear"):
        assert run(testing.CPU, np.zeros((0, 3, 4, 4)), mode=mode, size=(2, 2)).shape == (0, 3, 2, 2)
        assert run(testing.CPU, np.zeros((2, 0, 4, 4)), mode=mode, scale=(2, 2)).shape == (2, 0, 8, 8)
        assert (
            run_gradient(testing.CPU, np.zeros((2, 0, 2, 2)), np.zeros((2, 0, 4, 4)), mode=mode, size=(2, 2)).size == 0
        )


NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
LINEAR = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
OLD_TORCH = {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}
CORNERS = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
HALF = {"mode": "nearest", "coordinate_transformation_mode": "half_pixel"}


@pytest.mark.parametrize(
    ("attributes", "shape", "given", "want"),
    [
        (NEAREST, (1, 1, 1, 26), {"sizes": (1, 1, 1, 64)}, {"size": (1, 64)}),  # o05
        (NEAREST, (None, None, None, None), {"sizes": (1, 1, 1, 64)}, None),  # it may change N
        (NEAREST | {"axes": (2, 3)}, (None, None, None, None), {"sizes": (9, 64)}, {"size": (9, 64)}),
        (NEAREST | {"axes": (-3, -2)}, (1, 5, 5, 3), {"sizes": (9, 64)}, {"size": (9, 64), "layout": "NHWC"}),
        (NEAREST, ("N", "C", "H", "W"), {"scales": (1, 1, 2, 2)}, {"scale": (2, 2)}),
        (NEAREST, (1, 3, 4, 4), {"scales": (1, 1, 3, 2)}, {"size": (12, 8)}),
        (NEAREST, ("N", "C", "H", "W"), {"scales": (1, 1, 3, 2)}, None),  # PyTorch rounds a third
        (HALF, ("N", "C", "H", "W"), {"scales": (1, 1, 2, 4)}, {"scale": (2, 4)}),  # the same where scales are whole
        (HALF, (1, 3, 5, 5), {"scales": (1, 1, 3, 3)}, {"size": (15, 15)}),
        (HALF, (1, 1, 5, 5), {"sizes": (1, 1, 7, 7)}, None),
        # o06, https://github.com/microsoft/onnxruntime/issues/28291
        (HALF | {"nearest_mode": "round_prefer_ceil"}, (1, 1, 1, 20), {"sizes": (1, 1, 1, 6)}, None),
        (LINEAR, ("N", 3, "H", "W"), {"scales": (1, 1, 1.5, 2)}, {"mode": "bilinear", "scale": (1.5, 2)}),
        (LINEAR, (1, 1, 1, 8), {"sizes": (1, 1, 1, 1)}, {"mode": "bilinear", "size": (1, 1)}),  # o07
        (CORNERS, (1, 1, 1, 8), {"sizes": (1, 1, 1, 1)}, {"mode": "bilinear", "size": (1, 1), "align_corners": True}),
        (OLD_TORCH, (1, 1, 1, 8), {"sizes": (1, 1, 1, 1)}, None),
        (OLD_TORCH, (1, 1, 8, 8), {"sizes": (1, 1, 4, 4)}, {"mode": "bilinear", "size": (4, 4)}),
        (OLD_TORCH, ("N", 1, "H", "W"), {"scales": (1, 1, 2, 2)}, {"mode": "bilinear", "scale": (2, 2)}),
        (OLD_TORCH, ("N", 1, "H", "W"), {"scales": (1, 1, 0.5, 0.5)}, None),
        (CORNERS, ("N", 1, "H", "W"), {"scales": (1, 1, 1.5, 1.5)}, None),
        (LINEAR | {"antialias": 1}, (1, 1, 8, 8), {"sizes": (1, 1, 4, 4)}, None),
        (LINEAR | {"coordinate_transformation_mode": "asymmetric"}, (1, 1, 8, 8), {"sizes": (1, 1, 4, 4)}, None),
        (LINEAR | {"keep_aspect_ratio_policy": "not_larger"}, (1, 1, 8, 8), {"sizes": (1, 1, 4, 4)}, None),
        ({"mode": "cubic"}, (1, 1, 8, 8), {"sizes": (1, 1, 4, 4)}, None),
        (LINEAR, (1, 2, 8, 8), {"scales": (1, 2, 2, 2)}, None),
        (LINEAR, (8, 8, 8), {"scales": (1, 2, 2)}, None),
    ],
)
def test_which_resize_is_an_upsample2d(attributes, shape, given, want) -> None:
    assert from_resize(attributes, shape, **given) == want


def test_what_is_told_to_be_a_resize_computes_the_same() -> None:
    """Against ONNX's own evaluator."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    rng = np.random.default_rng(9)
    found = 0
    for _ in range(60):
        x = rng.standard_normal((1, 2, *rng.integers(1, 9, 2))).astype(np.float32)
        attributes = {
            "mode": str(rng.choice(["nearest", "linear"])),
            "coordinate_transformation_mode": str(
                rng.choice(["asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners"])
            ),
            "nearest_mode": str(rng.choice(["floor", "round_prefer_floor"])),
        }
        if rng.random() < 0.5:
            given = {"sizes": np.array([1, 2, *rng.integers(1, 12, 2)])}
        else:
            given = {"scales": np.array([1, 1, *rng.choice([0.5, 1, 1.5, 2, 3], 2)], np.float32)}
            if (x.shape * given["scales"] < 1).any():
                continue
        call = from_resize(attributes, x.shape, **given)
        if call is None:
            continue
        found += 1
        inputs = ["x", "", "scales"] if "scales" in given else ["x", "", "", "sizes"]
        node = onnx.helper.make_node("Resize", inputs, ["y"], **attributes)
        infos = [onnx.helper.make_tensor_value_info(n, 1 if n != "sizes" else 7, None) for n in ("x", *given)]
        graph = onnx.helper.make_graph([node], "g", infos, [onnx.helper.make_tensor_value_info("y", 1, None)])
        want = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)])).run(
            None, {"x": x, **given}
        )[0]
        np.testing.assert_allclose(
            ops.upsample2d(x, **call), want, rtol=1e-5, atol=1e-5, err_msg=f"{attributes} {given}"
        )
    assert found > 15


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_planes_of_more_than_2_to_the_31_elements_together(mode: str) -> None:
    torch = pytest.importorskip("torch")
    planes, extent = 520, 1024
    x = torch.zeros((planes, 1, extent, extent), dtype=torch.float16, device="cuda")
    x[-1] = 7
    graph = ortops.Graph()
    graph.output(ops.upsample2d(graph.input("x", "float16", [None, 1, extent, extent]), mode=mode, scale=(2, 2)), "y")
    session = ortops.InferenceSession(graph, providers=[testing.CUDA])
    y = torch.full((planes, 1, 2 * extent, 2 * extent), -1, dtype=torch.float16, device="cuda")
    binding = session.io_binding()
    binding.bind_input("x", "cuda", 0, np.float16, x.shape, x.data_ptr())
    binding.bind_output("y", "cuda", 0, np.float16, y.shape, y.data_ptr())
    torch.cuda.synchronize()
    session.run_with_iobinding(binding)
    torch.cuda.synchronize()
    assert bool((y[-1] == 7).all())
    assert bool((y[-2] == 0).all())
    assert bool((y[0] == 0).all())
