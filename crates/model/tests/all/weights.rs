//! Weights written to files and read back, and messages for files that do not fit.

use std::fs;
use std::path::Path;

use annulus_model::{
    Described, Flaw, Layout, OF_TENSORS, Placement, Specification, Weights, WeightsError,
    fingerprint, fingerprint_of_files, load, save,
};
use candle_core::{DType, Device, Tensor};
use half::bf16;

const WHOLE: u64 = u64::MAX;

/// Values that are exact in all four dtypes, and differ by `seed`.
fn tensor(shape: &[usize], seed: usize) -> Tensor {
    let len: usize = shape.iter().product();
    let values: Vec<f32> = (0..len).map(|i| ((i * 7 + seed) % 31) as f32 / 8.0 - 1.5).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn weights(shapes: &[(&str, &[usize])]) -> Weights {
    let named = shapes.iter().enumerate();
    named.map(|(seed, (name, shape))| ((*name).to_owned(), tensor(shape, seed))).collect()
}

fn some() -> Weights {
    weights(&[
        ("lm_head.weight", &[5, 4]),
        ("model.embed_tokens.weight", &[5, 4]),
        ("model.layers.0.mlp.up_proj.weight", &[3, 4]),
        ("model.norm.weight", &[4]),
    ])
}

fn cast(weights: &Weights, dtype: DType) -> Weights {
    let all = weights.iter();
    all.map(|(name, w)| (name.clone(), w.to_dtype(dtype).unwrap())).collect()
}

fn specification(weights: &Weights) -> Vec<Specification> {
    let all = weights.iter();
    all.map(|(name, w)| Specification {
        name: name.clone(),
        shape: w.dims().to_vec(),
        trained: true,
        placement: Placement::Replicated,
    })
    .collect()
}

/// The bits of every tensor, whatever its dtype.
fn bits(weights: &Weights) -> Vec<(String, DType, Vec<usize>, Vec<u8>)> {
    let all = weights.iter();
    all.map(|(name, w)| {
        let data = safetensors::View::data(w).into_owned();
        (name.clone(), w.dtype(), w.dims().to_vec(), data)
    })
    .collect()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The flaws found when `folder` is loaded as a model of `wanted`.
fn flaws(folder: &Path, wanted: &Weights) -> Vec<Flaw> {
    match load(folder, &specification(wanted), DType::F32) {
        Err(WeightsError::Unfit { flaws, .. }) => flaws,
        other => panic!("wanted flaws, found {other:?}"),
    }
}

fn save_as(folder: &Path, name: &str, weights: &Weights) {
    let scratch = tempfile::tempdir().unwrap();
    save(scratch.path(), weights, WHOLE).unwrap();
    fs::copy(scratch.path().join("model.safetensors"), folder.join(name)).unwrap();
}

#[test]
fn what_is_saved_is_loaded_to_the_bit() {
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
        let mut weights = cast(&some(), dtype);
        let odd = Tensor::new(&[f32::NAN, f32::NEG_INFINITY, -0.0, 1e-40], &Device::Cpu).unwrap();
        weights.insert("odd".to_owned(), odd.to_dtype(dtype).unwrap());
        for shard_bytes in [WHOLE, 100, 1] {
            let folder = tempfile::tempdir().unwrap();
            let mut files = save(folder.path(), &weights, shard_bytes).unwrap();
            files.sort();
            assert_eq!(files, names(folder.path()));
            let loaded = load(folder.path(), &specification(&weights), dtype).unwrap();
            assert_eq!(bits(&loaded), bits(&weights));
        }
    }
}

#[test]
fn shards_are_named_filled_and_indexed_as_transformers_does() {
    let folder = tempfile::tempdir().unwrap();
    let files = save(folder.path(), &some(), 128).unwrap();
    assert_eq!(
        files,
        [
            "model-00001-of-00003.safetensors",
            "model-00002-of-00003.safetensors",
            "model-00003-of-00003.safetensors",
            "model.safetensors.index.json",
        ]
    );
    let index = fs::read_to_string(folder.path().join(&files[3])).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    assert_eq!(index["metadata"]["total_size"], 4 * (20 + 20 + 12 + 4));
    let shards: Vec<_> = index["weight_map"].as_object().unwrap().values().collect();
    assert_eq!(shards, [&files[0], &files[1], &files[1], &files[2]]);
    for file in &files[..3] {
        let bytes = fs::read(folder.path().join(file)).unwrap();
        let (length, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(length % 8, 0);
        assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
    }
}

#[test]
fn every_floating_dtype_is_widened_or_narrowed() {
    let weights = some();
    for stored in [DType::F32, DType::BF16, DType::F16, DType::F64] {
        let narrow = cast(&weights, stored);
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), &narrow, WHOLE).unwrap();
        for wanted in [DType::F32, DType::BF16] {
            let expected = cast(&weights, wanted);
            let loaded = load(folder.path(), &specification(&weights), wanted).unwrap();
            assert_eq!(bits(&loaded), bits(&expected), "{stored:?} to {wanted:?}");
        }
    }
    // Narrowing rounds to the nearest.
    let folder = tempfile::tempdir().unwrap();
    let fine = 1.0 + 3.0 / 512.0;
    let one = Weights::from([("a".to_owned(), Tensor::new(&[fine], &Device::Cpu).unwrap())]);
    save(folder.path(), &one, WHOLE).unwrap();
    let narrowed = load(folder.path(), &specification(&one), DType::BF16).unwrap();
    assert_eq!(narrowed["a"].to_vec1::<bf16>().unwrap(), [bf16::from_f64(fine)]);
}

#[test]
fn everything_that_does_not_fit_is_said_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut held = some();
    let wanted = held.clone();
    held.remove("lm_head.weight");
    held.insert("model.norm.weight".to_owned(), tensor(&[6], 0));
    held.insert("model.norm.bias".to_owned(), tensor(&[6], 0));
    let whole = held["model.layers.0.mlp.up_proj.weight"].to_dtype(DType::I64).unwrap();
    held.insert("model.layers.0.mlp.up_proj.weight".to_owned(), whole);
    save(folder.path(), &held, WHOLE).unwrap();

    let error = load(folder.path(), &specification(&wanted), DType::F32).unwrap_err();
    let text = error.to_string().replace(&folder.path().display().to_string(), "FOLDER");
    assert_eq!(
        text,
        "the weights in `FOLDER` are not those of the model:
  `lm_head.weight` is missing (expected [5, 4])
  `model.layers.0.mlp.up_proj.weight` in `model.safetensors` is I64 (expected F32, BF16, F16 or F64)
  `model.norm.weight` in `model.safetensors` is [6] (expected [4])
  `model.norm.bias` [6] in `model.safetensors` is not a parameter of the model"
    );
    assert!(error.hint().unwrap().contains("config.json"));

    let mut held = wanted.clone();
    held.remove("lm_head.weight");
    save(folder.path(), &held, WHOLE).unwrap();
    let error = load(folder.path(), &specification(&wanted), DType::F32).unwrap_err();
    assert!(error.hint().unwrap().contains("tie_word_embeddings"));
}

#[test]
fn a_long_list_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..50).map(|i| format!("surplus.{i}")).collect();
    let held = names.iter().map(|name| (name.clone(), tensor(&[1], 0))).collect();
    save(folder.path(), &held, WHOLE).unwrap();
    let error = load(folder.path(), &[], DType::F32).unwrap_err().to_string();
    assert!(error.ends_with("\n  and 30 more"), "{error}");
}

#[test]
fn a_tied_model_may_repeat_its_embedding_and_nothing_else() {
    let mut wanted = some();
    let embedding = wanted["model.embed_tokens.weight"].clone();
    wanted.remove("lm_head.weight");
    let folder = tempfile::tempdir().unwrap();

    let mut held = wanted.clone();
    held.insert("lm_head.weight".to_owned(), embedding);
    save(folder.path(), &held, WHOLE).unwrap();
    let loaded = load(folder.path(), &specification(&wanted), DType::F32).unwrap();
    assert_eq!(bits(&loaded), bits(&wanted));

    held.insert("lm_head.weight".to_owned(), tensor(&[5, 4], 9));
    save(folder.path(), &held, WHOLE).unwrap();
    let [Flaw::Untied { .. }] = flaws(folder.path(), &wanted)[..] else {
        panic!("another last projection must not be dropped");
    };
}

#[test]
fn rotary_frequencies_of_older_checkpoints_are_left_out() {
    let wanted = some();
    let mut held = wanted.clone();
    let name = "model.layers.0.self_attn.rotary_emb.inv_freq";
    held.insert(name.to_owned(), tensor(&[4], 0));
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), &held, WHOLE).unwrap();
    let loaded = load(folder.path(), &specification(&wanted), DType::F32).unwrap();
    assert_eq!(bits(&loaded), bits(&wanted));
}

#[test]
fn index_and_shards_must_agree() {
    let wanted = weights(&[("a", &[2]), ("b", &[2]), ("c", &[2])]);
    let folder = tempfile::tempdir().unwrap();
    save_as(folder.path(), "1.safetensors", &weights(&[("a", &[2]), ("c", &[2])]));
    save_as(folder.path(), "2.safetensors", &weights(&[("b", &[2])]));
    let index = |map: &str| {
        let text = format!(r#"{{ "metadata": {{}}, "weight_map": {map} }}"#);
        fs::write(folder.path().join("model.safetensors.index.json"), text).unwrap();
    };
    let named = |file: &str| file.to_owned();

    index(r#"{"a": "1.safetensors", "b": "2.safetensors", "c": "1.safetensors"}"#);
    let loaded = load(folder.path(), &specification(&wanted), DType::F32).unwrap();
    assert_eq!(loaded.len(), 3);

    index(r#"{"a": "1.safetensors", "b": "1.safetensors", "d": "2.safetensors"}"#);
    let (one, two) = (named("1.safetensors"), named("2.safetensors"));
    assert_eq!(
        flaws(folder.path(), &wanted),
        [
            Flaw::NotInIndex { tensor: named("b"), file: two.clone() },
            Flaw::NotInIndex { tensor: named("c"), file: one.clone() },
            Flaw::NotInShard { tensor: named("b"), file: one },
            Flaw::NotInShard { tensor: named("d"), file: two },
            Flaw::Missing { tensor: named("c"), wanted: vec![2] },
        ]
    );

    index(r#"{"a": "1.safetensors", "b": "3.safetensors"}"#);
    let (tensor, file) = (named("b"), named("3.safetensors"));
    assert_eq!(flaws(folder.path(), &wanted), [Flaw::NoShard { tensor, file }]);
}

#[test]
fn the_fingerprint_changes_with_any_bit_and_not_with_the_place() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for folder in [&here, &there] {
        save(folder.path(), &some(), 128).unwrap();
        fs::write(folder.path().join("README.md"), folder.path().display().to_string()).unwrap();
    }
    let before = fingerprint(here.path()).unwrap();
    assert_eq!(before, fingerprint(there.path()).unwrap());
    assert_eq!(before.len(), OF_TENSORS.len() + 64);
    // In other files, with another header.
    let (again, file) = (tempfile::tempdir().unwrap(), "model.safetensors");
    let metadata = [("of".to_owned(), "somebody".to_owned())];
    let tensors = || some().into_iter();
    safetensors::serialize_to_file(tensors(), Some(metadata.into()), &again.path().join(file))
        .unwrap();
    assert_eq!(before, fingerprint(again.path()).unwrap());
    let of_files = |folder: &Path| fingerprint_of_files(folder).unwrap();
    assert_eq!(of_files(here.path()), of_files(there.path()));
    assert_ne!(of_files(here.path()), of_files(again.path()));
    // The same bytes under another name, and in another shape.
    for (name, shape) in [("model.other.weight", 4), ("model.norm.weight", 2)] {
        let norm = some()["model.norm.weight"].reshape((4 / shape, shape)).unwrap();
        let others = tensors().filter(|(own, _)| own != "model.norm.weight");
        let others = others.chain([(name.to_owned(), norm)]);
        safetensors::serialize_to_file(others, None, &again.path().join(file)).unwrap();
        assert_ne!(before, fingerprint(again.path()).unwrap(), "{name}");
    }

    let file = there.path().join("model-00002-of-00003.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(file, bytes).unwrap();
    assert_ne!(before, fingerprint(there.path()).unwrap());
}

/// Every placement says where a part's elements are: several that fill a layout write the files that one would.
#[test]
fn parts_are_put_where_they_lie() {
    let whole = weights(&[("a", &[5, 7]), ("b", &[6]), ("c", &[3, 4])]);
    let (alone, together) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let files = save(alone.path(), &whole, 128).unwrap();
    let all: Vec<_> = whole.iter().map(|(name, weight)| Described::of(name, weight)).collect();
    let layout = Layout::of_weights(&all, 128).unwrap();
    assert_eq!(layout.create(together.path()).unwrap(), files);
    let mut written = 0;
    for (part, half) in [(0, 0), (2, 0), (1, 0), (1, 1), (2, 1), (0, 1)] {
        let mut writer = layout.open(together.path()).unwrap();
        for (name, dim) in [("a", 1), ("b", 0), ("c", 0)] {
            let (placement, weight) = (Placement::Sharded(dim), &whole[name]);
            let long = |part| placement.cut_shape(weight.dims(), (part, 3))[dim];
            let begins = (0..part).map(long).sum();
            let cut = weight.narrow(dim, begins, long(part)).unwrap().flatten_all().unwrap();
            let (middle, end) = (cut.elem_count() / 2, cut.elem_count());
            let range = if half == 0 { 0..middle } else { middle..end };
            let own = cut.narrow(0, range.start, range.len()).unwrap();
            let runs = placement.runs(weight.dims(), (part, 3), range);
            writer.write(name, &own, &runs).unwrap();
        }
        written += writer.end().unwrap();
    }
    assert_eq!(written, layout.bytes());
    for file in files {
        let read = |folder: &Path| std::fs::read(folder.join(&file)).unwrap();
        assert!(read(alone.path()) == read(together.path()), "{file} differs");
    }
    let mut writer = layout.open(together.path()).unwrap();
    for (name, runs) in
        [("b", &[(4, 3)][..]), ("d", &[(0, 3)]), ("a", &[(0, 2), (2, 2)]), ("a", &[(0, 2)])]
    {
        let error = writer.write(name, &whole["b"].narrow(0, 0, 3).unwrap(), runs).unwrap_err();
        assert!(error.to_string().contains(&format!("`{name}` has no ")), "{error}");
    }
}
