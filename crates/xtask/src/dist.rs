//! What is handed out: a wheel and an archive, with the same program, for a Linux of some years ago.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::{root, setup, tool, wheel};

/// A linker and the symbols of old C libraries.
const ZIG: &str = "ziglang==0.15.2";
/// The C library that is linked against: the nearest below [`OLDEST`] that wheels have a name for.
const COMPATIBILITY: &str = "manylinux_2_28";
/// The C library of Debian 11, from 2021: newer symbols would be refused there.
const OLDEST: (u32, u32) = (2, 31);
/// The name before the version of every symbol of the C library that a program needs.
const SYMBOLS: &[u8] = b"GLIBC_";
/// A feature under the same name; the C library that brought it.
const RELATIVE: (&[u8], (u32, u32)) = (b"ABI_DT_RELR", (2, 36));
/// Beside the program in the archive; `annulus init` writes the experiments.
const BESIDE: [&str; 3] = ["README.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// Builds both below `target/dist`, says how large they are and what they need, and tries the wheel.
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
    // Zig is found as a module of the first Python; what it keeps stays below `target/`.
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
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    let words =
        ["-m".as_ref(), "zipfile".as_ref(), "-e".as_ref(), wheel.as_os_str(), folder.as_os_str()];
    tool::run("python3", &words)?;
    let files = tool::files(folder)?;
    let program = files.into_iter().find(|path| path.ends_with("scripts/annulus"));
    program.with_context(|| format!("no program in {}", wheel.display()))
}

/// The archive with the program and what belongs beside it, all in one folder.
fn archive(program: &Path, out: &Path) -> Result<PathBuf> {
    let name = format!("annulus-{}-x86_64-linux", env!("CARGO_PKG_VERSION"));
    let folder = out.join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    // Everybody may run it: a zip file's permissions are not unpacked.
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

/// The newest version of the C library that a program names. Its texts are searched too: they could only raise it.
fn newest_symbols(program: &[u8]) -> Result<(u32, u32)> {
    let at = |place: usize| &program[place + SYMBOLS.len()..];
    let places = program.windows(SYMBOLS.len()).enumerate().filter(|(_, name)| *name == SYMBOLS);
    places.filter_map(|(place, _)| version(at(place))).max().context("no symbols of glibc")
}

/// `2.31`, or `2.2.5`, of which the third number is of old names alone.
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
