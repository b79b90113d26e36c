"""What nvcc made of the kernels, translated and run on the stand-in: that the translation refuses what it
does not know and finds what a GPU would, and that the code of two architectures computes what g++'s does.
"""

import ctypes
import struct

import pytest
import torch

from tests.native import building
from tests.native.backends import Backend, RawLaunches, load_ptx
from tests.native.test_contract import tensors
from tests.ptx.instructions import UnknownPtx
from tests.ptx.sweep import calls, far_launches, launches
from tests.ptx.translate import translated

KERNEL = """
.version 9.0
.target sm_80
.address_size 64
.visible .entry small(
  .param .u64 small_param_0,
  .param .u64 small_param_1
)
.maxntid 32, 1, 1
{{
  .reg .pred %p<3>;
  .reg .b32 %r<9>;
  .reg .f32 %f<9>;
  .reg .b64 %rd<9>;
  .shared .align 4 .b8 shared[32];
  ld.param.u64 %rd1, [small_param_0];
  ld.param.u64 %rd2, [small_param_1];
  {body}
  ret;
}}
"""


@pytest.mark.parametrize(
    "instruction",
    [
        "mystery.f32 %f1, %f2, %f3;",
        "add.ftz.f32 %f1, %f2, %f3;",
        "add.rn.s64 %rd1, %rd2, %rd2;",
        "add.s64 %rd1, %rd2, %rd3, %rd4;",
        "fma.rn.pred %p1, %p2, %p2, %p2;",
        "cvt.rn.s32.f32 %r1, %f1;",
        "cvt.rz.f32.f64 %f1, %rd1;",
        "setp.lt.and.s32 %p1, %r1, %r2, %p2;",
        "setp.ltu.s32 %p1, %r1, %r2;",
        "ld.volatile.global.f32 %f1, [%rd1];",
        "ld.shared.nc.f32 %f1, [shared];",
        "ld.global.f32 %f1, [%rd1+%rd2];",
        "st.global.v2.f32 [%rd1], {{%f1, %f2, %f3}};",
        "atom.global.xor.b32 %r1, [%rd1], %r2;",
        "shfl.sync.bfly.b64 %rd1, %rd2, 1, 31, -1;",
        "bar.sync 1;",
        "bar.warp.sync -1;",
        "mov.u32 %r1, %laneid;",
        "add.s32 %r1, %r2, %r77;",
        "mov.u64 %rd1, nowhere;",
        ".reg .b128 %q<2>;",
        ".shared .align 4 .b8 dynamic[];",
    ],
)
def test_what_the_translation_does_not_know_is_an_error(instruction):
    with pytest.raises(UnknownPtx, match="line 19"):
        translated(KERNEL.format(body="\n" + instruction.replace("{{", "{").replace("}}", "}")))
    with pytest.raises(UnknownPtx):
        translated(".version 9.0\n.weak .func helper()\n")


def test_a_pair_of_which_one_half_is_never_read():
    body = "{ .reg .b32 tmp; mov.b64 {tmp, %r1}, %rd1; }"
    assert "all >> 32" in translated(KERNEL.format(body=body))


# The lines, the address's offset, and what is found.
UNDEFINED = [
    (
        "ld.global.nc.f32 %f1, [%rd1]; st.global.f32 [%rd1], %f1;",
        0,
        "memory is written that the launch reads",
    ),
    (
        "st.global.f32 [%rd1], %f1; ld.global.nc.f32 %f1, [%rd1];",
        0,
        "memory is written that the launch reads",
    ),
    ("ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];", 4, "misaligned access of 16 bytes"),
    ("ld.global.f32 %f1, [%rd1];", 2, "misaligned access of 4 bytes"),
    ("mov.u64 %rd1, 0; ld.global.f32 %f1, [%rd1];", 0, "a null pointer"),
    ("st.shared.f32 [shared+32], %f1;", 0, "outside of the kernel's 32 bytes of shared memory"),
    (
        "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 7; @%p1 bar.sync 0; bar.sync 0;",
        0,
        "barrier divergence",
    ),
    ("shfl.sync.up.b32 %r1, %r2, 1, 0, 7;", 0, "lane calls a warp op outside its mask"),
    ("div.u32 %r1, %r2, %r3;", 0, "a division by zero"),
]
# The lines, two values of 32 bits, and the result.
COMPUTED = [
    ("prmt.b32 %r3, %r1, %r2, 0x7A40;", (0x80C0FFEE, 0x11223344), 0x11FF44EE),
    ("shf.l.wrap.b32 %r3, %r1, %r2, 36;", (0xABCDEF01, 0x12345678), 0x2345678A),
    ("shf.r.wrap.b32 %r3, %r1, %r2, 4;", (0xABCDEF01, 0x12345678), 0x8ABCDEF0),
    ("bfe.u32 %r3, %r1, 4, 8;", (0xABCDEF01, 0), 0xF0),
    ("bfi.b32 %r3, %r1, %r2, 8, 12;", (0xABC, 0xFFFFFFFF), 0xFFFABCFF),
    ("shl.b32 %r3, %r1, 32;", (1, 0), 0),
    ("shr.s32 %r3, %r1, 40;", (0x80000000, 0), 0xFFFFFFFF),
    ("mul.hi.u32 %r3, %r1, %r2;", (0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFE),
    ("mul.hi.s32 %r3, %r1, %r2;", (0xFFFFFFFF, 2), 0xFFFFFFFF),
    ("cvt.rzi.s32.f32 %r3, %r1;", (0x7FC00000, 0), 0),
    ("cvt.rzi.s32.f32 %r3, %r1;", (0x4F800000, 0), 0x7FFFFFFF),
    ("cvt.rni.s32.f32 %r3, %r1;", (0x40200000, 0), 2),
    ("min.f32 %r3, %r1, %r2;", (0x7FC00000, 0x3F800000), 0x3F800000),
    ("max.f32 %r3, %r1, %r2;", (0x80000000, 0x00000000), 0x00000000),
    ("neg.f32 %r3, %r1;", (0x00000000, 0), 0x80000000),
    ("setp.ne.f32 %p1, %r1, %r1; selp.b32 %r3, 1, 2, %p1;", (0x7FC00000, 0), 2),
    ("setp.neu.f32 %p1, %r1, %r1; selp.b32 %r3, 1, 2, %p1;", (0x7FC00000, 0), 1),
    ("setp.ltu.f32 %p1, %r1, %r2; selp.b32 %r3, 1, 2, %p1;", (0x7FC00000, 0), 1),
    ("div.s32 %r3, %r1, %r2;", (0x80000000, 0xFFFFFFFF), 0x80000000),
    ("cvt.s64.s32 %rd3, %r1; shr.s64 %rd3, %rd3, 8; cvt.u32.u64 %r3, %rd3;", (0x80000000, 0), 0xFF800000),
    (
        "mov.u32 %r4, %tid.x; shfl.sync.up.b32 %r3|%p1, %r4, 1, 0, -1; "
        "shfl.sync.idx.b32 %r3, %r3, 9, 31, -1;",
        (0, 0),
        8,
    ),
    (
        "mov.u32 %r4, %tid.x; shfl.sync.bfly.b32 %r3, %r4, 5, 31, -1; shfl.sync.idx.b32 %r3, %r3, 2, 31, -1;",
        (0, 0),
        7,
    ),
]
LOADS = "ld.global.u32 %r1, [%rd1];\nld.global.u32 %r2, [%rd1+4];\n"
BODIES = [
    *(body for body, _, _ in UNDEFINED),
    *(f"{LOADS}{body} st.global.u32 [%rd2], %r3;" for body, _, _ in COMPUTED),
    "",
]


@pytest.fixture(scope="module")
def small(tmp_path_factory, emulated_library):
    """Runs the kernel of this number of BODIES, in a block, with two addresses."""
    folder = tmp_path_factory.mktemp("ptx")
    kernels = [
        KERNEL.format(body=body.replace("; ", ";\n")).replace("small", f"small_{i}")
        for i, body in enumerate(BODIES)
    ]
    (folder / "small.cpp").write_text(translated("".join(kernels)))
    flags = ["-O0", "-fPIC", "-fno-strict-aliasing", f"-I{building.PTX}", f"-I{building.EMU}"]
    sources = [folder / "small.cpp", building.PTX / "library.cpp"]
    library = ctypes.CDLL(str(building.build("small.so", sources, flags, ["-shared"])))
    library.ptx_kernel.restype = emulated_library.emulator_machine.restype = ctypes.c_void_p
    emulated_library.emulator_launch.restype = ctypes.c_char_p
    library.ptx_run_on(ctypes.c_void_p(emulated_library.emulator_machine()))

    def run(number, *addresses, threads=32):
        kernel = ctypes.c_void_p(library.ptx_kernel(number))
        emulated_library.emulator_add_kernel(99, kernel, kernel)
        emulated_library.emulator_choose_code(99)
        values = [ctypes.c_uint64(at) for at in addresses]
        parameters = (ctypes.c_void_p * 2)(*map(ctypes.addressof, values))
        wrong = emulated_library.emulator_launch(kernel, 1, 0, 1, threads, parameters)
        emulated_library.emulator_choose_code(0)
        return wrong.decode() if wrong else ""

    return run


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(UNDEFINED)), ids=[found for _, _, found in UNDEFINED])
def test_what_is_undefined_on_a_gpu_is_found(small, number):
    _, offset, found = UNDEFINED[number]
    memory = torch.zeros(64)
    assert found in small(number, memory.data_ptr() + offset, memory.data_ptr())


@pytest.mark.slow
def test_more_threads_than_the_bounds_are_refused(small):
    memory = torch.zeros(64)
    number = BODIES.index("")
    assert small(number, memory.data_ptr(), memory.data_ptr()) == ""
    assert "more threads than the bounds" in small(number, memory.data_ptr(), memory.data_ptr(), threads=33)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(COMPUTED)), ids=[body for body, _, _ in COMPUTED])
def test_instructions_compute_what_the_manual_says(small, number):
    _, given, expected = COMPUTED[number]
    memory = torch.tensor(struct.unpack("2i", struct.pack("2I", *given)), dtype=torch.int32)
    result = torch.zeros(1, dtype=torch.int32)
    assert small(len(UNDEFINED) + number, memory.data_ptr(), result.data_ptr()) == ""
    assert int(result) % 2**32 == expected


def same(a, b, tolerance):
    """Equal with their NaN, bit for bit if the tolerance is 0."""
    return all(
        torch.allclose(p, q, atol=tolerance, rtol=0, equal_nan=True) for p, q in zip(a, b, strict=True)
    )


def parameters_of(launch):
    return tensors(launch) + tensors([part[1] for part in launch if isinstance(part, tuple)])


def visited(libraries):
    """architecture -> kernel -> (blocks that were visited, all): a kernel of a header counts once."""
    counted = {}
    for architecture, library in libraries.items():
        counted[architecture] = kernels = {}
        for i in range(library.ptx_kernels()):
            blocks = library.ptx_blocks(i)
            seen = sum(1 for j in range(blocks) if library.ptx_visits(i, j))
            name = library.ptx_name(i).decode()
            kernels[name] = max(kernels.get(name, (0, 0)), (seen, blocks))
    return counted


@pytest.mark.nvcc
@pytest.mark.slow
def test_nearly_all_blocks_are_visited_and_compute_what_the_source_says(
    emulated_library, ptx_libraries, capsys
):
    for library in ptx_libraries.values():
        library.ptx_forget_visits()
    namespace = torch.ops.cfol_fast_emulated
    sides = [Backend(f"code-{i}", namespace, emulated_library, code=i) for i in range(1 + len(ptx_libraries))]
    for here, *there in zip(*(calls() for _ in sides), strict=True):
        name = here[0]
        # CUDA's logarithm, sine and cosine are not glibc's.
        tolerance = 6e-8 if name == "pgd_start" else 0.0
        expected = tensors(sides[0].op(name)(*here[1])) + tensors(here[1])
        for side, (_, arguments) in zip(sides[1:], there, strict=True):
            result = tensors(side.op(name)(*arguments)) + tensors(arguments)
            assert same(expected, result, tolerance), (side, name, arguments)

    raw = RawLaunches(emulated_library)
    for made in (launches, far_launches):
        for one, other in zip(made(), made(), strict=True):
            for code, (kernel, parameters, *first) in ((1, one), (2, other)):
                raw(code, kernel, parameters, *first)
            assert same(parameters_of(one[1]), parameters_of(other[1]), 0.0), one[0]

    for architecture, kernels in visited(ptx_libraries).items():
        seen, blocks = (sum(column) for column in zip(*kernels.values(), strict=True))
        with capsys.disabled():
            print(f"\n{architecture}: {seen} of {blocks} basic blocks of {len(kernels)} kernels were visited")
            for name, (some, all_) in sorted(kernels.items(), key=lambda item: item[1][0] - item[1][1])[:5]:
                print(f"  {some} of {all_}: {name.partition('(anonymous namespace)::')[2].partition('(')[0]}")
        assert seen >= 0.9 * blocks


@pytest.mark.nvcc
@pytest.mark.slow
def test_every_kernel_has_ptx_and_each_is_loaded_once(emulated_library, ptx_libraries):
    for architecture in building.PTX_ARCHITECTURES:
        again = load_ptx(emulated_library, architecture)
        assert again._name == ptx_libraries[architecture]._name


@pytest.mark.nvcc
@pytest.mark.slow
def test_ptx_is_made_with_the_flags_of_the_build_and_kept_by_content(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "CACHE", tmp_path)
    source = building.CSRC / "cuda" / "uniform.cu"
    first = building.ptx_of(source, "sm_80")
    assert ".target sm_80" in first
    with monkeypatch.context() as patch:
        patch.setattr(building.subprocess, "run", fails_but_for("--version", building.subprocess.run))
        assert building.ptx_of(source, "sm_80") == first
    flags = building.setup_script()["NVCC_FLAGS"]
    flags.remove("--fmad=false")
    try:
        assert building.ptx_of(source, "sm_80") != first
    finally:
        flags.append("--fmad=false")


def fails_but_for(argument, run):
    def ran(command, **options):
        assert argument in command, command
        return run(command, **options)

    return ran
