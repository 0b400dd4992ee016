//! Ready-made batches: rows by step, and files that are none.

use std::path::{Path, PathBuf};

use annulus_data::{Batches, Source};
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;

fn write(folder: &TempDir, name: &str, dtype: Dtype, shape: &[usize], bytes: &[u8]) -> PathBuf {
    let path = folder.path().join("batches.safetensors");
    let view = TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
    safetensors::serialize_to_file([(name, view)], None, &path).unwrap();
    path
}

fn bytes(ids: impl Iterator<Item = i64>) -> Vec<u8> {
    ids.flat_map(i64::to_le_bytes).collect()
}

fn error(path: &Path) -> String {
    let error = Batches::open(path, 2, 4).unwrap_err();
    assert!(error.hint().is_some());
    error.to_string().replace(path.to_str().unwrap(), "…")
}

#[test]
fn step_t_takes_row_t() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, "tokens", Dtype::I64, &[3, 2, 5], &bytes(0..30));
    let batches = Batches::open(&path, 2, 4).unwrap();
    assert_eq!((batches.batches(), batches.vocabulary()), (Some(3), 30));
    let second = &batches.batch(1).unwrap();
    assert_eq!(second[0].inputs, [10, 11, 12, 13]);
    assert_eq!(second[1].targets, [16, 17, 18, 19]);
    let end = batches.batch(3).unwrap_err();
    assert_eq!(end.hint().unwrap(), "set `schedule.steps` to at most 3");
    let other = write(&folder, "tokens", Dtype::I64, &[3, 2, 5], &bytes(1..31));
    assert_ne!(Batches::open(&other, 2, 4).unwrap().fingerprint(), batches.fingerprint());
}

/// Other bytes at the same place, as another program's `open(path, "wb")` puts them there.
fn overwrite(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn what_changes_while_it_is_trained_on_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    // Steps of 80 bytes, which are hashed together, and of 128 kB.
    for (batch, tokens) in [(2, 4), (4, 4095)] {
        let shape = [3, batch, tokens + 1];
        let count = shape.iter().product::<usize>() as i64;
        let path = write(&folder, "tokens", Dtype::I64, &shape, &bytes(0..count));
        let batches = Batches::open(&path, batch, tokens).unwrap();
        let (good, first) = (std::fs::read(&path).unwrap(), batches.batch(2).unwrap());
        assert_eq!(i64::from(first[0].inputs[0]), 2 * count / 3);
        let mut bad = good.clone();
        *bad.last_mut().unwrap() ^= 1;
        overwrite(&path, &bad);
        let changed = format!("`{}` changed while it was read", path.display());
        assert_eq!(batches.batch(2).unwrap_err().to_string(), changed);
        overwrite(&path, &good[..good.len() - 1]);
        assert_eq!(batches.batch(2).unwrap_err().to_string(), changed);
        overwrite(&path, b"");
        assert_eq!(batches.batch(0).unwrap_err().to_string(), changed);
        overwrite(&path, &good);
        assert_eq!(batches.batch(2).unwrap(), first);
    }
}

#[test]
fn headers_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("batches.safetensors");
    for (length, found) in [
        (u64::MAX, "is not a safetensors file"),
        (1 << 20, "its header of 1048576 bytes exceeds its 16 bytes"),
    ] {
        overwrite(&path, &[length.to_le_bytes(), *b"{}      "].concat());
        assert!(error(&path).contains(found), "{}", error(&path));
    }
}

#[test]
fn wrong_files_are_named_with_what_was_found_and_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let wanted = "expected I64 [any, 2, 5] [steps, batch, tokens + 1]";
    for (dtype, shape, width) in [
        (Dtype::I64, &[3, 2, 6][..], 8),
        (Dtype::I64, &[3, 1, 5], 8),
        (Dtype::I64, &[30], 8),
        (Dtype::I32, &[3, 2, 5], 4),
    ] {
        let bytes = vec![0; shape.iter().product::<usize>() * width];
        let path = write(&folder, "tokens", dtype, shape, &bytes);
        assert_eq!(error(&path), format!("`tokens` in `…` is {dtype:?} {shape:?}, {wanted}"));
    }
    let path = write(&folder, "ids", Dtype::I64, &[1, 2, 5], &bytes(0..10));
    assert_eq!(error(&path), "`…` holds no batches: found `ids`, expected `tokens`");
    let path = write(&folder, "tokens", Dtype::I64, &[0, 2, 5], &[]);
    assert_eq!(error(&path), "`…` holds no batches: `tokens` has 0 steps");
    let ids = bytes(0..10);
    let views = ["tokens", "loss_mask", "labels"]
        .map(|name| (name, TensorView::new(Dtype::I64, vec![1, 2, 5], &ids).unwrap()));
    safetensors::serialize_to_file(views, None, &path).unwrap();
    let beside = "nothing reads `labels`, `loss_mask`, which it has beside `tokens`";
    assert_eq!(error(&path), format!("`…` holds no batches: {beside}"));
    std::fs::write(&path, "not a tensor in sight").unwrap();
    assert!(error(&path).starts_with("`…` holds no batches: "));
    std::fs::write(&path, "").unwrap();
    error(&path);
    assert!(error(&folder.path().join("none")).starts_with("cannot read"));
    assert_eq!(error(folder.path()), "`…` is not a regular file");
}

#[test]
fn ids_that_are_none_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for id in [-1, -100, 1 << 32, i64::MIN] {
        let ids = (0..30).map(|index| if index == 18 { id } else { index });
        let path = write(&folder, "tokens", Dtype::I64, &[3, 2, 5], &bytes(ids));
        let wanted = format!("`tokens`[1, 1, 3] in `…` is {id}, expected an id of 0 to 4294967295");
        assert_eq!(error(&path), wanted);
    }
    let path = write(&folder, "tokens", Dtype::I64, &[3, 2, 5], &bytes(0..30));
    for (batch, tokens) in [(0, 4), (2, 0), (usize::MAX, usize::MAX)] {
        assert!(Batches::open(&path, batch, tokens).is_err());
    }
}
