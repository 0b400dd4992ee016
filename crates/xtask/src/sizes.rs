//! Checks that files have at most 400 lines and functions at most 40. For tests and kernels it warns above these, and fails above 600 and
//! 80.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::{root, tool};

const FILE: Budget = Budget { warn: 400, fail: 600 };
const FUNCTION: Budget = Budget { warn: 40, fail: 80 };

/// The extensions of files that are checked.
const ENDINGS: [&str; 5] = ["rs", "cu", "h", "cpp", "py"];

struct Budget {
    warn: usize,
    fail: usize,
}

impl Budget {
    fn strict(self) -> Budget {
        Budget { fail: self.warn, ..self }
    }
}

/// Whether a file is in a crate's `src`.
fn is_source(shown: &str) -> bool {
    shown.starts_with("crates/") && shown.split('/').nth(2) == Some("src")
}

/// Warns of files and functions that are too long, and fails if one is far too long.
pub(crate) fn run() -> Result<()> {
    let mut failed = Vec::new();
    for folder in ["crates", "tests", "kernels"] {
        let files = tool::files(&root().join(folder))?;
        for path in files.iter().filter(|path| ENDINGS.contains(&tool::ending(path))) {
            let shown = path.strip_prefix(root()).unwrap_or(path).display().to_string();
            for (budget, lines, what) in lengths(path, &shown)? {
                let budget = if is_source(&shown) { budget.strict() } else { budget };
                if lines > budget.fail {
                    failed.push(format!("{what} has {lines} lines, over {}", budget.fail));
                } else if lines > budget.warn {
                    tool::say(&format!("warning: {what} has {lines} lines, over {}", budget.warn));
                }
            }
        }
    }
    if !failed.is_empty() {
        bail!("sizes\n  {}", failed.join("\n  "));
    }
    Ok(())
}

/// The lines of a file and, in Rust, of its functions.
fn lengths(path: &Path, shown: &str) -> Result<Vec<(Budget, usize, String)>> {
    let text = fs::read_to_string(path).with_context(|| shown.to_owned())?;
    let mut all = vec![(FILE, text.lines().count(), shown.to_owned())];
    if tool::ending(path) == "rs" {
        let mut functions = Functions::default();
        functions.visit_file(&syn::parse_file(&text).with_context(|| shown.to_owned())?);
        let named = |(name, lines)| (FUNCTION, lines, format!("{shown}: fn {name}"));
        all.extend(functions.0.into_iter().map(named));
    }
    Ok(all)
}

/// Every function's name and lines, from its signature to its closing brace.
#[derive(Default)]
struct Functions(Vec<(String, usize)>);

impl Functions {
    fn add(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let lines = block.span().end().line + 1 - signature.span().start().line;
        self.0.push((signature.ident.to_string(), lines));
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }
}
