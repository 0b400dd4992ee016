//! Files of at most 400 lines and functions of at most 40: warned above, refused at 600 and 80.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::{root, tool};

const FILE: Budget = Budget { warn: 400, fail: 600 };
const FUNCTION: Budget = Budget { warn: 40, fail: 80 };

struct Budget {
    warn: usize,
    fail: usize,
}

/// Fails where a budget is broken, warns where it is exceeded.
pub(crate) fn run() -> Result<()> {
    let mut long = Vec::new();
    for folder in ["crates", "tests", "kernels"] {
        for path in sources(&root().join(folder))? {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let shown = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
            long.push((FILE, text.lines().count(), shown.clone()));
            if path.extension().is_some_and(|extension| extension == "rs") {
                let mut functions = Functions::default();
                functions.visit_file(&syn::parse_file(&text).with_context(|| shown.clone())?);
                let named = |(name, lines)| (FUNCTION, lines, format!("{shown}: fn {name}"));
                long.extend(functions.0.into_iter().map(named));
            }
        }
    }
    report(long)
}

fn report(found: Vec<(Budget, usize, String)>) -> Result<()> {
    let mut failed = Vec::new();
    for (budget, lines, what) in found {
        if lines > budget.fail {
            failed.push(format!("{what} has {lines} lines, over {}", budget.fail));
        } else if lines > budget.warn {
            tool::say(&format!("warning: {what} has {lines} lines, over {}", budget.warn));
        }
    }
    if !failed.is_empty() {
        bail!("sizes\n  {}", failed.join("\n  "));
    }
    Ok(())
}

fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else if matches!(extension, Some("rs" | "cu" | "cuh" | "py")) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
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
