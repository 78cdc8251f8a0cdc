"""The stub libraries are planned from what torch's own libraries say of themselves."""

from e2e.cluster import cuda_stubs, gpu_code
from e2e.cluster.cuda_stubs import Library, Stub, Symbol

READELF = """\

Dynamic section at offset 0x1000 contains 5 entries:
  Tag        Type                         Name/Value
 0x0000000000000001 (NEEDED)             Shared library: [libcublas.so.13]
 0x0000000000000001 (NEEDED)             Shared library: [libc10.so]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
 0x000000000000000e (SONAME)             Library soname: [libtorch_cuda.so]

Symbol table '.dynsym' contains 4 entries:
   Num:    Value          Size Type    Bind   Vis      Ndx Name
     0: 0000000000000000     0 NOTYPE  LOCAL  DEFAULT  UND
     1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND cublasCreate_v2@libcublas.so.13 (4)
     2: 0000000000000000     0 NOTYPE  GLOBAL DEFAULT  UND cudaGetErrorString
     3: 0000000000001234   0x10 OBJECT  GLOBAL DEFAULT   12 at_state@@LIBTORCH

Version symbols section '.gnu.version' contains 4 entries:
 Addr: 0x0000000000000320  Offset: 0x00000320  Link: 4 (.dynsym)
  000:   0 (*local*)       4 (libcublas.so.13)   0 (*local*)       1 (*global*)

Version needs section '.gnu.version_r' contains 1 entry:
 Addr: 0x0000000000000400  Offset: 0x00000400  Link: 5 (.dynstr)
  000000: Version: 1  File: libcublas.so.13  Cnt: 1
  0x0010:   Name: libcublas.so.13  Flags: none  Version: 4
"""


def undefined(name: str, version: str = "", kind: str = "FUNC", size_bytes: int = 0) -> Symbol:
    return Symbol(name, version, kind, size_bytes, defined=False)


def library(*symbols: Symbol, needed: tuple[str, ...] = (), owners: dict[str, str] | None = None) -> Library:
    return Library(symbols, needed, owners or {})


def test_readelfs_output_is_read_symbol_by_symbol() -> None:
    found = cuda_stubs.parse_readelf(READELF)
    assert found.needed == ("libcublas.so.13", "libc10.so", "libc.so.6")
    assert found.version_owners == {"libcublas.so.13": "libcublas.so.13"}
    assert found.symbols == (
        undefined("cublasCreate_v2", "libcublas.so.13"),
        undefined("cudaGetErrorString", kind="NOTYPE"),
        Symbol("at_state", "LIBTORCH", "OBJECT", 16, defined=True),
    )


def test_every_missing_library_gets_a_stub_and_no_system_library_does() -> None:
    torch = library(needed=("libcudnn.so.9", "libc10.so", "libc.so.6", "libstdc++.so.6", "ld-linux-x86-64.so.2"))
    assert cuda_stubs.plan({"libtorch.so": torch, "libc10.so": library()}) == {"libcudnn.so.9": Stub((), None)}


def test_a_symbol_belongs_to_the_library_of_its_version_node() -> None:
    wanted = undefined("odd_name", "NVSHMEM")
    torch = library(wanted, needed=("libnvshmem_host.so.3",), owners={"NVSHMEM": "libnvshmem_host.so.3"})
    assert cuda_stubs.plan({"a.so": torch}) == {"libnvshmem_host.so.3": Stub((wanted,), "NVSHMEM")}


def test_a_symbol_without_a_version_goes_by_the_longest_fitting_prefix() -> None:
    names = ("cublasLtCreate", "cublasCreate", "cudaMalloc", "unrelated")
    needed = ("libcublasLt.so.13", "libcublas.so.13", "libcudart.so.13")
    stubs = cuda_stubs.plan({"a.so": library(*map(undefined, names), needed=needed)})
    owners = {symbol.name: name for name, stub in stubs.items() for symbol in stub.symbols}
    assert owners == dict(zip(names[:3], needed, strict=True))


def test_a_symbol_that_torch_defines_itself_is_not_stubbed() -> None:
    defined = Symbol("cudaHelper", "", "FUNC", 8, defined=True)
    stubs = cuda_stubs.plan(
        {"a.so": library(undefined("cudaHelper"), needed=("libcudart.so.13",)), "b.so": library(defined)}
    )
    assert stubs["libcudart.so.13"].symbols == ()


def test_functions_answer_no_device_texts_are_texts_and_data_keeps_its_size() -> None:
    names = ("cudaMalloc", "cudaGetErrorString", "cudaGetLastError")
    text = cuda_stubs.source(Stub((*map(undefined, names), undefined("table", kind="OBJECT", size_bytes=40)), None))
    malloc, error_string, last_error = (
        next(line for line in text.splitlines() if f'"{name}"' in line) for name in names
    )
    assert "return 100" in malloc and "return 100" in last_error
    assert error_string.startswith("const char *")
    assert 'char d3[40] __asm__("table")' in text


def test_the_place_of_a_section_is_read_from_readelf() -> None:
    text = """\
  [Nr] Name              Type            Address          Off    Size   ES Flg Lk Inf Al
  [ 0]                   NULL            0000000000000000 000000 000000 00      0   0  0
  [ 9] .text             PROGBITS        0000000000001000 001000 0000f0 00  AX  0   0 16
  [17] .nv_fatbin        PROGBITS        0000000000200000 1ff000 0a0000 00   A  0   0  8
"""
    assert gpu_code.parse_sections(text) == {".text": (0x1000, 0xF0), ".nv_fatbin": (0x1FF000, 0xA0000)}
