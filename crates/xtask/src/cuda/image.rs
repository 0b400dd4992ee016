//! Checks the compiled kernels: registers, spills, and the instructions that they must use.

use std::fs;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail};

use super::listing::{Function, functions};
use super::toolkit::Toolkit;
use crate::emulate::copy;
use crate::{root, tool};

/// The most local memory of a thread in bytes: a few registers that are spilled once, outside of loops.
const SPILLED: u32 = 64;

/// A part of kernels' names, and the instructions that these kernels must use.
type Required = (&'static str, &'static [&'static str]);

/// An architecture, and those of its kernels that older architectures cannot run or that are faster on it.
const WANTED: [(&str, &[Required]); 6] = [
    ("sm_80", &[BY_WARPS]),
    ("sm_90a", &[("_sm90_", &["HGMMA", "UTMALDG", "SYNCS", "USETMAXREG"])]),
    ("sm_86", &[BY_WARPS]),
    ("sm_89", &[BY_WARPS]),
    ("sm_100f", &[("_sm100_", &["UTCHMMA", "UTMALDG", "LDTM", "STTM", "USETMAXREG"]), BY_WARPS]),
    ("sm_120", &[BY_WARPS]),
];

const BY_WARPS: Required = ("_sm80_", &["HMMA", "LDSM", "LDGSTS"]);

/// How many of these, from the first, are checked by default; the others are compiled from sm_80's sources.
const DEFAULT: usize = 2;

/// Compiles all kernels for all architectures, or by default a selection for two, and lists flaws.
pub(crate) fn check(toolkit: &Toolkit, all: bool) -> Result<()> {
    let mut wrong = Vec::new();
    let wanted = if all { &WANTED[..] } else { &WANTED[..DEFAULT] };
    let binaries: Vec<_> = thread::scope(|scope| {
        let of = |wanted| scope.spawn(move || compiled(toolkit, wanted, all));
        let threads = wanted.iter().map(of);
        let threads: Vec<_> = threads.collect();
        let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
        joined.map(|done| done.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    for (&(architecture, required), binary) in wanted.iter().zip(binaries) {
        let binary = binary?;
        let list = |option| listed_by(toolkit, option, &binary);
        let listed = functions(&list("-sass")?, &list("--dump-resource-usage")?)
            .with_context(|| binary.display().to_string())?;
        if listed.is_empty() {
            bail!("no kernel in {}", binary.display());
        }
        for function in &listed {
            let instructions = required.iter().find(|(part, _)| function.name.contains(part));
            let instructions = instructions.map_or(&[][..], |(_, instructions)| instructions);
            let missing = instructions.iter().filter(|word| !function.has(word));
            let missing: Vec<_> = missing.copied().collect();
            let flaws = flaws(function, &missing);
            tool::say(&format!("{architecture} {}{}", function.described(), shown(&flaws)));
            wrong.extend(
                flaws.into_iter().map(|flaw| format!("{architecture} {}: {flaw}", function.name)),
            );
        }
    }
    if !wrong.is_empty() {
        bail!("{} kernels have flaws:\n{}", wrong.len(), wrong.join("\n"));
    }
    Ok(())
}

fn flaws(function: &Function, missing: &[&str]) -> Vec<String> {
    let mut flaws = Vec::new();
    // The reference kernels are not meant to be fast, and index intervals dynamically, which registers cannot do.
    if function.spilled_in_loops > 0 && !function.name.contains("_reference_") {
        let found = function.spilled_in_loops;
        let accesses = "accesses of local memory inside a loop of products";
        flaws.push(format!("{found} {accesses}, wanted none"));
    }
    if function.stack > SPILLED {
        flaws.push(format!("{} bytes of local memory, wanted at most {SPILLED}", function.stack));
    }
    // Consumer warps wait for the registers that the producer releases: with fewer at launch they would wait for ever.
    if function.has("USETMAXREG") && ![128, 168].contains(&function.registers) {
        flaws.push(format!("{} registers at launch, wanted 128 or 168", function.registers));
    }
    if !missing.is_empty() {
        flaws.push(format!("no {} in it", missing.join(", ")));
    }
    flaws
}

fn shown(flaws: &[String]) -> String {
    if flaws.is_empty() { String::new() } else { format!("  <- {}", flaws.join("; ")) }
}

/// The compiled kernels for an architecture; not compiled again if neither the sources, nor the compiler, nor this file have changed.
fn compiled(toolkit: &Toolkit, wanted: &(&str, &[Required]), all: bool) -> Result<PathBuf> {
    let (architecture, required) = *wanted;
    let binary = root().join(format!("target/cuda/kernels-{architecture}.cubin"));
    let kept = binary.with_extension("from");
    let from = format!("{all}\n{}\n{}", version(toolkit)?, sources()?);
    let same = binary.exists() && fs::read_to_string(&kept).is_ok_and(|before| before == from);
    if !same {
        let _ = fs::remove_file(&kept);
        compile(toolkit, architecture, &reduced_sources(architecture, required, all)?, &binary)?;
        fs::write(&kept, from)?;
    }
    Ok(binary)
}

/// What the compiler says of its version.
fn version(toolkit: &Toolkit) -> Result<String> {
    let output = Command::new(toolkit.program("nvcc")).arg("--version").output();
    let output = output.context("cannot start nvcc")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The text of this file and of all sources of kernels.
fn sources() -> Result<String> {
    let mut all = String::from(include_str!("image.rs"));
    for file in tool::files(&root().join("kernels"))? {
        let text = fs::read(&file)?;
        all.extend(["\n", &file.to_string_lossy(), "\n", &String::from_utf8_lossy(&text)]);
    }
    Ok(all)
}

/// Copies the sources, with the table of attention kernels reduced to those that are checked.
fn reduced_sources(architecture: &str, required: &[Required], all: bool) -> Result<PathBuf> {
    let folder = root().join("target/cuda/sources").join(architecture);
    tool::remove_old(&folder)?;
    copy(&root().join("kernels"), &folder)?;
    let table = folder.join("attention/table.h");
    let text = fs::read_to_string(&table).with_context(|| table.display().to_string())?;
    let lines = text.lines().filter(|line| is_checked(line, required, all));
    fs::write(&table, lines.flat_map(|line| [line, "\n"]).collect::<String>())?;
    Ok(folder)
}

/// Whether the kernel in a line of the table is checked: generations that are not this architecture's are left out. As f16 and bf16
/// differ only by type, unless `all` is set only the smallest heads of f16 are checked.
fn is_checked(line: &str, required: &[Required], all: bool) -> bool {
    let Some(words) = line.strip_prefix("ATTENTION(") else { return true };
    let words: Vec<&str> = words.split(',').map(str::trim).collect();
    let [_, generation, dtype, dim, ..] = *words else { return true };
    let is_own = |(part, _): &Required| part.trim_matches('_') == generation;
    let others = generation.starts_with("sm") && !required.iter().any(is_own);
    let is_represented = dtype == "f16" && !["any", "d64"].contains(&dim);
    !others && (all || !is_represented)
}

fn compile(toolkit: &Toolkit, architecture: &str, sources: &Path, binary: &Path) -> Result<()> {
    let generate = format!("arch=compute_{0},code=sm_{0}", &architecture[3..]);
    let output = Command::new(toolkit.program("nvcc"))
        .args(["-std=c++17", "-O3", "--cubin", "-Xptxas", "-warn-spills"])
        .args(["-gencode", &generate, "-o"])
        .arg(binary)
        .arg(sources.join("entries.cu"))
        .output()
        .context("cannot start nvcc")?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("nvcc for {architecture}:\n{said}");
    }
    // If the assembler serializes asynchronous products, or ignores the hand-over of registers, it only warns (C7508, C7510, C7512).
    if let Some(line) = said.lines().find(|line| line.contains("(C75")) {
        bail!("nvcc for {architecture}: {line}");
    }
    Ok(())
}

fn listed_by(toolkit: &Toolkit, option: &str, binary: &Path) -> Result<String> {
    let output = Command::new(toolkit.program("cuobjdump")).arg(option).arg(binary).output()?;
    if !output.status.success() {
        bail!("cuobjdump {option}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_architecture_of_the_image_is_checked() {
        let build = fs::read_to_string(root().join("crates/ops/build.rs")).unwrap();
        let table = build.split("const ARCHITECTURES").nth(1).unwrap().split("];").next().unwrap();
        let found = |line: &str| Some(format!("sm_{}", line.split('"').nth(1)?));
        let mut built: Vec<String> = table.lines().filter_map(found).collect();
        let mut wanted = WANTED.map(|(name, _)| name.to_owned());
        built.sort();
        wanted.sort();
        assert_eq!(built, wanted);
    }

    #[test]
    fn kernels_that_are_left_out_are_represented() {
        let text = fs::read_to_string(root().join("kernels/attention/table.h")).unwrap();
        let kept = |wanted: usize, all| {
            let lines = text.lines().filter(|line| is_checked(line, WANTED[wanted].1, all));
            lines.filter(|line| line.starts_with("ATTENTION(")).collect::<Vec<_>>()
        };
        let every = kept(0, true);
        assert!(every.iter().any(|line| line.contains(", sm80, f16, d128,")));
        let [usual, hopper] = [0, 1].map(|wanted| kept(wanted, false));
        let left_out = every.iter().filter(|line| !usual.contains(line));
        for line in left_out.clone() {
            assert!(line.contains(", f16, "), "{line}");
            // A kernel of the same pass and generation represents it.
            let similar = line.split(", f16").next().unwrap().to_owned() + ", f16, d64,";
            assert!(usual.iter().any(|line| line.starts_with(&similar)), "{line}");
        }
        assert!(left_out.count() > 20);
        assert!(hopper.iter().all(|line| !line.contains(", sm80, ")));
        assert!(hopper.iter().any(|line| line.contains(", sm90, bf16, d256,")));
    }
}
