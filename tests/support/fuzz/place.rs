//! Where inputs lie that are read from files: in memory, if the system has such a folder.

use std::fs;
use std::path::{Path, PathBuf};

use annulus_data::Tokenizer;
use annulus_experiment::Shape;
use annulus_model::Specification;
use tempfile::TempDir;

/// A folder with what readers want beside their input.
pub struct Place {
    folder: TempDir,
    /// Byte pairs without a merge, in `tokenizer.json` here.
    pub(super) tokenizer: Tokenizer,
    /// Of a tiny model.
    pub(super) specification: Vec<Specification>,
}

impl Place {
    /// With a tokenizer, and the weights of a tiny model in `model`.
    ///
    /// # Panics
    /// When nothing can be written.
    pub fn new() -> Place {
        let memory = Path::new("/dev/shm");
        let root = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let folder = tempfile::Builder::new().prefix("annulus-fuzz-").tempdir_in(root);
        let folder = folder.expect("a scratch folder");
        for name in ["model", "sharded", "run/step-1", "chat"] {
            fs::create_dir_all(folder.path().join(name)).expect("a scratch folder");
        }
        let path = folder.path().join("chat/tokenizer.json");
        fs::write(&path, super::readers::TOKENIZER).expect("a scratch folder");
        let tokenizer = Tokenizer::open(&path.display().to_string()).expect("a tokenizer");
        let shape: Shape = annulus_experiment::parse_config("config.json", super::readers::CONFIG)
            .expect("a config.json");
        let config =
            annulus_train::model_config(&shape, annulus_experiment::Dtype::F32).expect("a model");
        let specification = annulus_model::Llama::specification(&config);
        Place { folder, tokenizer, specification }
    }

    /// A path in it.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file in it.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).expect("a scratch folder can be written");
        path
    }
}

impl Default for Place {
    fn default() -> Place {
        Place::new()
    }
}
