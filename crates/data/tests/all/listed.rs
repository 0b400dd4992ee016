//! Which files are read: each once, however often it is named, and whichever link leads to it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use annulus_data::{Cache, DataError, Excluded, Listed, Records, Texts, Tokenizer, list};
use tempfile::TempDir;

/// A folder of texts, each of which says its own name.
struct Scene(TempDir);

impl Scene {
    fn new(names: &[&str]) -> Scene {
        let scene = Scene(tempfile::tempdir().unwrap());
        for name in names {
            fs::create_dir_all(scene.path(name).parent().unwrap()).unwrap();
            fs::write(scene.path(name), name).unwrap();
        }
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn paths(&self, names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(|name| self.path(name)).collect()
    }

    /// What is read of `inputs`: texts with `|` between them.
    fn read(&self, inputs: &[&str]) -> Result<String, DataError> {
        let inputs = self.paths(inputs);
        let texts = Texts::new(&inputs, Records::Text, &Tokenizer::Bytes);
        let cache = Cache::temporary(&texts, &mut |_| ())?;
        let mut ids = vec![0; cache.tokens() as usize];
        cache.read(0, &mut ids)?;
        Ok(ids.iter().map(|id| u8::try_from(*id).map_or('|', char::from)).collect())
    }

    /// What is listed of `inputs`.
    fn listed(&self, inputs: &[&str]) -> Listed {
        list(&self.paths(inputs), Records::Text, Excluded::NOTHING).unwrap()
    }

    /// What is named more than once.
    fn repeated(&self, inputs: &[&str]) -> Vec<String> {
        self.names(&self.listed(inputs).repeated)
    }

    fn names(&self, paths: &[PathBuf]) -> Vec<String> {
        let name = |path: &PathBuf| path.strip_prefix(self.0.path()).unwrap().display().to_string();
        paths.iter().map(name).collect()
    }
}

#[test]
fn a_file_is_read_once_however_often_it_is_named() {
    let scene = Scene::new(&["g/a/b/x.txt", "g/a/y.txt", "g/z.txt", "g/none/picture.png"]);
    let all = "g/a/b/x.txt|g/a/y.txt|g/z.txt";
    assert_eq!(scene.read(&["g"]).unwrap(), all);
    assert_eq!(scene.repeated(&["g"]), [""; 0]);
    // What `g/**/*` stands for.
    let pattern = ["g/a", "g/a/b", "g/a/b/x.txt", "g/a/y.txt", "g/z.txt"];
    assert_eq!(scene.read(&pattern).unwrap(), all);
    assert_eq!(scene.repeated(&pattern), ["g/a/b", "g/a/b/x.txt", "g/a/y.txt"]);
    assert_eq!(scene.listed(&pattern).bytes().unwrap(), all.len() as u64 - 2);
    // By the order in which they are named.
    assert_eq!(scene.read(&["g/z.txt", "g"]).unwrap(), "g/z.txt|g/a/b/x.txt|g/a/y.txt");
    assert_eq!(scene.read(&["g", "g/../g/z.txt", "g", "g/none"]).unwrap(), all);
    assert!(matches!(scene.read(&["g/none"]), Err(DataError::NoFiles { .. })));
}

#[test]
fn links_to_folders_are_followed_but_not_in_circles() {
    let scene = Scene::new(&["g/b/x.txt", "g/y.txt", "far/deep/z.txt", "g/run/run.txt"]);
    let link = |to: &str, name: &str| symlink(to, scene.path(name)).unwrap();
    link("../far", "g/a");
    link("..", "g/b/back");
    link("b", "g/c");
    link("nowhere", "g/d");
    link("../y.txt", "g/b/same.txt");
    link("../../g", "far/deep/around");
    let all = "far/deep/z.txt|g/b/same.txt|g/b/x.txt|g/run/run.txt";
    let read = scene.read(&["g"]).unwrap();
    assert_eq!(read, all.replace("g/b/same.txt", "g/y.txt"));
    let twice = ["g/a/deep/around", "g/b/back", "g/c", "g/y.txt"];
    assert_eq!(scene.repeated(&["g"]), twice);
    // What is no text is none behind a link either.
    let excluded = Excluded::new([scene.path("far/deep")]);
    let listed = list(&[scene.path("g")], Records::Text, &excluded).unwrap();
    assert_eq!(listed.left_out, [scene.path("g/a/deep")]);
    assert_eq!(listed.dangling, [scene.path("g/d")]);
    for mark in ["run.lock", "experiment.yaml"] {
        fs::write(scene.path("far").join(mark), "").unwrap();
    }
    assert_eq!(scene.read(&["g"]).unwrap(), "g/y.txt|g/b/x.txt|g/run/run.txt");
}

/// Folders of things that can be made again are left out, with a word on it; one that is named itself is read.
#[test]
fn a_folder_marked_as_a_cache_is_read_only_where_it_is_named() {
    let scene = Scene::new(&["g/a.txt", "g/made/b.txt", "g/made/deep/c.txt"]);
    fs::write(scene.path("g/made/CACHEDIR.TAG"), "").unwrap();
    assert_eq!(scene.read(&["g"]).unwrap(), "g/a.txt");
    assert_eq!(scene.listed(&["g"]).left_out, [scene.path("g/made")]);
    assert_eq!(scene.read(&["g/made"]).unwrap(), "g/made/b.txt|g/made/deep/c.txt");
}

#[test]
fn endings_are_compared_without_case() {
    let scene = Scene::new(&["A.TXT", "b.Md", "c.PNG"]);
    assert_eq!(scene.read(&["."]).unwrap(), "A.TXT|b.Md");
    let line = |path: &Path| fs::write(path, "{\"text\": \"a\"}\n").unwrap();
    line(&scene.path("D.JSONL"));
    let inputs = [scene.path("")];
    let listed = list(&inputs, Records::Lines, Excluded::NOTHING).unwrap();
    assert_eq!(listed.bytes().unwrap(), 14);
    assert_eq!(scene.names(&listed.others), ["A.TXT", "b.Md", "c.PNG"]);
}

#[test]
fn an_experiment_is_no_text_unless_it_is_named() {
    let scene = Scene::new(&["g/a.txt", "g/lists.yaml"]);
    let text = "name: b\nmodel: { hidden_size: 8 }\ndata:\n  path: g\nschedule: { steps: 1 }\n";
    fs::write(scene.path("g/base.yaml"), text).unwrap();
    assert_eq!(scene.read(&["g"]).unwrap(), "g/a.txt|g/lists.yaml");
    assert_eq!(scene.names(&scene.listed(&["g"]).left_out), ["g/base.yaml"]);
    assert_eq!(scene.read(&["g/base.yaml"]).unwrap(), text);
}

#[test]
fn a_link_to_nothing_says_where_it_leads() {
    let scene = Scene::new(&["x.txt"]);
    symlink("gone.txt", scene.path("a.txt")).unwrap();
    let error = scene.read(&["a.txt"]).unwrap_err();
    assert!(error.to_string().ends_with("is a link to `gone.txt`, which is not there"), "{error}");
}
