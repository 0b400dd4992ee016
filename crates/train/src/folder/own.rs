//! Which files a run or a model consists of: what another command writes must not replace them.

use std::path::Path;

use annulus_files::hugging_face::{ADAPTER_CONFIG, CONFIG};

use crate::checkpoint::{STATE, is_part};
use crate::folder::is_run;
use crate::setup::texts::is_made;

/// Whether `path`, which need not exist, is a file of the run or the model in whose folder it lies: one that a run writes there itself, or
/// one that a checkpoint or a Hugging Face model consists of.
pub fn is_own_file(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let folder = path.parent().unwrap_or(Path::new(""));
    let is_model =
        || [CONFIG, ADAPTER_CONFIG, STATE].iter().any(|file| folder.join(file).is_file());
    is_made(&name) && is_run(folder) || is_part(&name) && is_model()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::folder::{LOCK, RESOLVED};

    #[test]
    fn runs_and_models_have_files_of_their_own() {
        let place = tempfile::tempdir().unwrap();
        let is_own = |name: &str| is_own_file(&place.path().join(name));
        let of_run =
            ["metrics.jsonl", "manifest.json", "experiment.yaml", "trace-3.json", "LATEST"];
        let of_model = [
            "config.json",
            "model.safetensors",
            "model-00001-of-00002.safetensors",
            "adapter_model.safetensors",
            "optimizer.safetensors",
            "tokenizer.json",
            "merges.txt",
            "hashes.json",
            "state.json",
        ];
        let others = ["report.html", "scores.safetensors", "metrics.csv", "trace.json"];
        // A folder like any other.
        assert!(!of_run.iter().chain(&of_model).any(|name| is_own(name)));
        for name in [RESOLVED, LOCK] {
            fs::write(place.path().join(name), "").unwrap();
        }
        assert!(of_run.into_iter().all(is_own) && !of_model.into_iter().any(is_own));
        fs::write(place.path().join(CONFIG), "").unwrap();
        assert!(of_model.into_iter().all(is_own) && !others.into_iter().any(is_own));
    }
}
