//! Parses the output of `cuobjdump`: the instructions of each kernel, and its registers and memory.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result};

/// Instructions that multiply: those of tensor cores by generation, and those without.
const PRODUCTS: [&str; 4] = ["HMMA", "HGMMA", "UTCHMMA", "FFMA"];

/// A compiled kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// Registers per thread.
    pub(crate) registers: u32,
    /// Bytes of local memory per thread.
    pub(crate) stack: u32,
    /// How often each instruction occurs, by its name up to the first dot.
    pub(crate) instructions: BTreeMap<String, u32>,
    /// Loads and stores of local memory inside loops that multiply.
    pub(crate) spilled_in_loops: u32,
}

impl Function {
    pub(crate) fn has(&self, word: &str) -> bool {
        self.instructions.contains_key(word)
    }

    /// A summary in one line.
    pub(crate) fn described(&self) -> String {
        let of = |word: &str| self.instructions.get(word).copied().unwrap_or(0);
        let all: u32 = self.instructions.values().sum();
        let mut line = format!("{:<44} {:>3} registers", self.name, self.registers);
        for word in ["HMMA", "HGMMA", "UTCHMMA", "UTMALDG"].into_iter().filter(|word| of(word) > 0)
        {
            let _ = write!(line, " {:>4} {word}", of(word));
        }
        let _ = write!(line, " {all:>6} instructions");
        if self.stack > 0 {
            let _ = write!(line, " {} B local", self.stack);
        }
        line
    }
}

/// All kernels, from the listings of instructions and of resources.
///
/// # Errors
/// A kernel whose resources are not listed, which would pass every check of them.
pub(crate) fn functions(instructions: &str, resources: &str) -> Result<Vec<Function>> {
    let mut found: Vec<Function> = Vec::new();
    let mut lines = Vec::new();
    for line in instructions.lines() {
        if let Some(name) = line.trim().strip_prefix("Function : ") {
            close(&mut found, &mut lines);
            found.push(Function { name: name.to_owned(), ..Function::default() });
        } else if let Some(instruction) = instruction(line) {
            lines.push(instruction);
        }
    }
    close(&mut found, &mut lines);
    let taken = resources_of(resources);
    for function in &mut found {
        let (registers, stack) = taken
            .get(&function.name)
            .with_context(|| format!("the resources of `{}` are not listed", function.name))?;
        (function.registers, function.stack) = (*registers, *stack);
    }
    Ok(found)
}

/// An instruction: its address, its name, and the address that it branches to.
struct Instruction {
    address: u64,
    word: String,
    target: Option<u64>,
}

/// Parses a line such as `        /*0a30*/    @!P0 BRA 0x3f0 ;    /* 0x... */`.
fn instruction(line: &str) -> Option<Instruction> {
    let (address, rest) = line.trim().strip_prefix("/*")?.split_once("*/")?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let text = rest.split(';').next()?.trim();
    let mut words = text.split_whitespace().skip_while(|word| word.starts_with('@'));
    let word = words.next()?.split('.').next()?.to_owned();
    if word.is_empty() || !word.starts_with(|c: char| c.is_ascii_uppercase()) {
        return None;
    }
    let target = words.filter_map(|word| word.trim_matches('`').strip_prefix("0x"));
    let target = target.filter_map(|word| u64::from_str_radix(word, 16).ok()).last();
    Some(Instruction { address, target: target.filter(|_| word == "BRA"), word })
}

/// Counts the last function's instructions, and the accesses of local memory in its loops of products.
fn close(found: &mut [Function], lines: &mut Vec<Instruction>) {
    let Some(function) = found.last_mut() else { return };
    for line in lines.iter() {
        *function.instructions.entry(line.word.clone()).or_default() += 1;
    }
    let loops = lines.iter().filter_map(|line| {
        let start = line.target.filter(|target| *target < line.address)?;
        let inside = |other: &&Instruction| (start..=line.address).contains(&other.address);
        let multiplies = |other: &Instruction| PRODUCTS.contains(&&*other.word);
        let body: Vec<_> = lines.iter().filter(inside).collect();
        body.iter().any(|other| multiplies(other)).then_some(start..=line.address)
    });
    let loops: Vec<_> = loops.collect();
    let local = |line: &&Instruction| matches!(&*line.word, "LDL" | "STL");
    let inside = |line: &&Instruction| loops.iter().any(|range| range.contains(&line.address));
    function.spilled_in_loops = lines.iter().filter(local).filter(inside).count() as u32;
    lines.clear();
}

/// Registers and bytes of local memory by name:
/// ` Function name:` and then `  REG:32 STACK:0 SHARED:0 LOCAL:0 ...`
fn resources_of(text: &str) -> BTreeMap<String, (u32, u32)> {
    let mut all = BTreeMap::new();
    let mut name = None;
    for line in text.lines().map(str::trim) {
        if let Some(function) = line.strip_prefix("Function ") {
            name = Some(function.trim_end_matches(':').to_owned());
        } else if let (Some(_), true) = (&name, line.starts_with("REG:")) {
            let of = |key: &str| {
                let value = line.split_whitespace().find_map(|word| word.strip_prefix(key));
                value.and_then(|value| value.parse().ok()).unwrap_or(0)
            };
            let local = of("STACK:").max(of("LOCAL:"));
            all.extend(name.take().map(|name| (name, (of("REG:"), local))));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "
		Function : folds
	.headerflags	@\"EF_CUDA_SM80\"
        /*0000*/                   MOV R1, c[0x0][0x28] ;    /* 0x00000a0000017a02 */
        /*0010*/                   STL [R1], R4 ;            /* 0x0 */
        /*0020*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
        /*0030*/                   LDL R5, [R1+0x4] ;
        /*0040*/              @!P0 BRA 0x20 ;
        /*0050*/                   EXIT ;
		Function : copies
        /*0000*/                   BRA 0x10 ;
        /*0010*/                   EXIT ;
";
    const TAKEN: &str = "
 Function folds:
  REG:168 STACK:16 SHARED:0 LOCAL:0 CONSTANT[0]:400
 Function copies:
  REG:8 STACK:0 SHARED:0 LOCAL:0
";

    #[test]
    fn counts_instructions_and_what_loops_put_aside() {
        let found = functions(LISTING, TAKEN).unwrap();
        assert_eq!(found.len(), 2);
        let [folds, copies] = [&found[0], &found[1]];
        assert_eq!((folds.registers, folds.stack, folds.spilled_in_loops), (168, 16, 1));
        assert!(folds.has("HMMA") && !copies.has("HMMA"));
        assert_eq!((copies.registers, copies.spilled_in_loops), (8, 0));
        assert_eq!(folds.instructions.values().sum::<u32>(), 6);
    }

    #[test]
    fn loops_of_every_generation_of_products_are_seen() {
        for word in PRODUCTS {
            let listing = LISTING.replace("HMMA.16816.F32 R4, R8, R12, R4", word);
            assert_eq!(functions(&listing, TAKEN).unwrap()[0].spilled_in_loops, 1, "{word}");
        }
    }

    #[test]
    fn a_kernel_whose_resources_are_not_listed_is_an_error() {
        let refused = functions(LISTING, &TAKEN.replace("copies", "others")).unwrap_err();
        assert!(refused.to_string().contains("the resources of `copies`"), "{refused}");
    }
}
