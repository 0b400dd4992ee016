//! `cargo xtask dist`: builds a wheel and an archive with the same program, which also run on Linux distributions from 2021 on.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::{root, setup, tool, wheel};

/// Zig, which links against old versions of the C library.
const ZIG: &str = "ziglang==0.15.2";
/// The C library that is linked against: the newest up to [`OLDEST`] that has a tag for wheels.
const COMPATIBILITY: &str = "manylinux_2_28";
/// The version of the C library in Debian 11, from 2021, which lacks newer symbols.
const OLDEST: (u32, u32) = (2, 31);
/// The prefix of the versions of the C library's symbols in a program.
const SYMBOLS: &[u8] = b"GLIBC_";
/// A feature that a program marks by this text, and the version of the C library that introduced it.
const RELATIVE: (&[u8], (u32, u32)) = (b"ABI_DT_RELR", (2, 36));
/// Files in the archive besides the program; experiments are left out, as `annulus init` writes them.
const BESIDE: [&str; 3] = ["README.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// Builds both below `target/dist`, prints their sizes and the C library that they need, and tries the wheel.
pub(crate) fn run() -> Result<()> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!("wheel and archive are built on 64-bit Linux on x86");
    }
    let out = root().join("target/dist");
    let wheel = wheel(&out)?;
    let program = unpacked(&wheel, &out.join("wheel"))?;
    let needed = newest_symbols(&fs::read(&program)?)?;
    let archive = archive(&program, &out)?;
    for path in [&wheel, &archive, &program] {
        let megabytes = fs::metadata(path)?.len() as f64 / 1e6;
        tool::say(&format!("{megabytes:>7.1} MB  {}", path.display()));
    }
    let (major, minor) = needed;
    tool::say(&format!("the program needs glibc {major}.{minor}"));
    ensure!(
        needed <= OLDEST,
        "the program needs glibc {major}.{minor}, Debian 11 has {}.{}",
        OLDEST.0,
        OLDEST.1
    );
    wheel::tried(&wheel)
}

fn wheel(out: &Path) -> Result<PathBuf> {
    let tools = root().join("target/python/dist");
    setup::environment_at(&tools, &[&[wheel::MATURIN, ZIG]])?;
    // Zig is found as a module of the first Python on the path; its cache is kept below `target/`.
    let others = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(tools.join("bin")).chain(std::env::split_paths(&others));
    let path = std::env::join_paths(folders)?;
    let cache = root().join("target/zig");
    let variables = [
        ("PATH", path.as_os_str()),
        ("ZIG_GLOBAL_CACHE_DIR", cache.as_os_str()),
        ("CARGO_ZIGBUILD_CACHE_DIR", cache.as_os_str()),
    ];
    let options = ["--release", "--zig", "--compatibility", COMPATIBILITY];
    wheel::built(&tools.join("bin/maturin"), &variables, out, &options)
}

/// The program that a wheel carries.
fn unpacked(wheel: &Path, folder: &Path) -> Result<PathBuf> {
    tool::remove_old(folder)?;
    let words =
        ["-m".as_ref(), "zipfile".as_ref(), "-e".as_ref(), wheel.as_os_str(), folder.as_os_str()];
    tool::run("python3", &words)?;
    let files = tool::files(folder)?;
    let program = files.into_iter().find(|path| path.ends_with("scripts/annulus"));
    program.with_context(|| format!("no program in {}", wheel.display()))
}

/// Makes the archive: one folder with the program and the other files.
fn archive(program: &Path, out: &Path) -> Result<PathBuf> {
    let name = format!("annulus-{}-x86_64-linux", env!("CARGO_PKG_VERSION"));
    let folder = out.join(&name);
    tool::remove_old(&folder)?;
    fs::create_dir_all(&folder)?;
    // Unpacking a wheel as a zip file loses the permission to execute.
    set_executable(program)?;
    fs::copy(program, folder.join("annulus"))?;
    for name in BESIDE {
        fs::copy(root().join(name), folder.join(name))?;
    }
    let archive = out.join(format!("{name}.tar.gz"));
    let (archived, from) = (archive.to_string_lossy(), out.to_string_lossy());
    let owners = ["--owner=0", "--group=0", "--numeric-owner", "--sort=name"];
    let words = ["--create", "--gzip", "--file", &archived, "--directory", &from];
    tool::run("tar", &[&words[..], &owners, &[&name]].concat())?;
    Ok(archive)
}

#[cfg(unix)]
fn set_executable(program: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(program, fs::Permissions::from_mode(0o755))?)
}

#[cfg(not(unix))]
fn set_executable(_: &Path) -> Result<()> {
    Ok(())
}

/// The newest version of the C library that a program names. All bytes are searched, which can only overestimate it.
fn newest_symbols(program: &[u8]) -> Result<(u32, u32)> {
    let at = |place: usize| &program[place + SYMBOLS.len()..];
    let places = program.windows(SYMBOLS.len()).enumerate().filter(|(_, name)| *name == SYMBOLS);
    places.filter_map(|(place, _)| version(at(place))).max().context("no symbols of glibc")
}

/// Parses a version such as `2.31`, or `2.2.5`, whose third number only old symbols have.
fn version(name: &[u8]) -> Option<(u32, u32)> {
    if name.starts_with(RELATIVE.0) {
        return Some(RELATIVE.1);
    }
    let end = name.iter().position(|letter| !letter.is_ascii_digit() && *letter != b'.')?;
    let mut numbers = std::str::from_utf8(&name[..end]).ok()?.split('.');
    let mut next = || numbers.next()?.parse().ok();
    Some((next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_symbols_are_found() {
        let newest = |names: &[u8]| newest_symbols(names).ok();
        assert_eq!(newest(b"\0GLIBC_2.2.5\0GLIBC_2.28\0GLIBC_2.9\0GLIBC_PRIVATE\0"), Some((2, 28)));
        assert_eq!(newest(b"\0GLIBC_2.17\0GLIBC_ABI_DT_RELR\0"), Some((2, 36)));
        assert_eq!(newest(b"libc.so.6\0"), None);
    }
}
