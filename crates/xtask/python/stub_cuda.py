"""Lets PyPI's PyTorch start on a machine without CUDA packages.

The wheel is linked against gigabytes of CUDA libraries, which its CPU kernels never call. For every missing library this writes a stub of
the same name into torch/lib, with every symbol that torch needs; each aborts when it is called.
"""

import collections
import pathlib
import re
import subprocess
import sysconfig
import tempfile

SITE = pathlib.Path(sysconfig.get_paths()["purelib"])
LIBRARIES = SITE / "torch" / "lib"


def readelf(*arguments):
    return subprocess.run(["readelf", "-W", *arguments], capture_output=True, text=True, check=True).stdout


def missing_sonames(objects):
    """The CUDA libraries, by their names, that torch needs and no package has installed."""
    brought = {path.name for path in SITE.glob("nvidia/**/lib/*.so*")} | {path.name for path in LIBRARIES.iterdir()}
    needed = set()
    for path in objects:
        needed.update(re.findall(r"\(NEEDED\).*\[(.+?)\]", readelf("-d", path)))
    return sorted(name for name in needed - brought if re.match(r"lib(cu|nv|nccl)", name))


def wanted_symbols(objects, sonames):
    """soname -> version (or '') -> symbols. A version tells which library a symbol is in; a symbol without one may be in any."""
    wanted = collections.defaultdict(lambda: collections.defaultdict(set))
    defined, unversioned = set(), set()
    for path in objects:
        owner, file = {}, None
        for line in readelf("-V", path).splitlines():
            if match := re.search(r"File: (\S+)", line):
                file = match[1]
            elif match := re.search(r"Name: (\S+)", line):
                owner[match[1]] = file
        for line in readelf("--dyn-syms", path).splitlines():
            fields = line.split()
            if len(fields) < 8 or not fields[0].endswith(":"):
                continue
            name, _, version = fields[7].partition("@")
            version = version.strip("@")
            if fields[6] != "UND":
                defined.add(name)
            elif version:
                if owner.get(version) in sonames:
                    wanted[owner[version]][version].add(name)
            elif re.match(r"(cu|p?nccl|nv|_?_?nv)", name):
                unversioned.add(name)
    if sonames:
        wanted[sonames[0]][""].update(unversioned - defined)
    return wanted


def write_stub(soname, versions):
    with tempfile.TemporaryDirectory() as folder:
        source, script = pathlib.Path(folder, "stub.c"), pathlib.Path(folder, "stub.map")
        names = sorted(set().union(*versions.values())) if versions else []
        source.write_text("#include <stdlib.h>\n" + "".join(f"void {name}(void) {{ abort(); }}\n" for name in names))
        blocks = [f"{version} {{ global: {' '.join(f'{name};' for name in sorted(group))} }};\n" for version, group in versions.items() if version]
        script.write_text("".join(blocks))
        flags = [f"-Wl,--version-script={script}"] if blocks else []
        command = ["cc", "-shared", "-fPIC", "-fno-builtin", "-w", f"-Wl,-soname,{soname}", *flags, "-o", LIBRARIES / soname, source]
        subprocess.run(command, check=True)


def main():
    objects = [*LIBRARIES.glob("libtorch*.so"), *LIBRARIES.glob("libc10*.so")]
    sonames = missing_sonames(objects)
    wanted = wanted_symbols(objects, sonames)
    for soname in sonames:
        write_stub(soname, wanted[soname])
    print(f"{len(sonames)} libraries stubbed in {LIBRARIES}")


if __name__ == "__main__":
    main()
