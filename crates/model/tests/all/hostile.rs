//! Damaged and malicious files: each gets one clear error, without a panic and within bounded memory.

use std::fs::{self, File};
use std::path::Path;

use annulus_model::{Placement, Specification, Weights, WeightsError, load, save};
use candle_core::{DType, Device, Tensor};

/// A model of one parameter `a` [2].
fn wanted() -> [Specification; 1] {
    [Specification {
        name: "a".to_owned(),
        shape: vec![2],
        trained: true,
        placement: Placement::Replicated,
    }]
}

/// A file whose header is `header` and whose data are `data` bytes.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

/// The error for `folder`, without its path.
fn complaint(folder: &Path) -> String {
    let error = load(folder, &wanted(), DType::F32).expect_err("a hostile file was loaded");
    assert!(!error.to_string().ends_with('.'), "{error}");
    error.to_string().replace(&folder.display().to_string(), "FOLDER")
}

fn complaint_of(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    complaint(folder.path())
}

const GOOD: &str = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;

#[test]
fn hostile_headers() {
    let good = file(GOOD, 8);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("model.safetensors"), &good).unwrap();
    load(folder.path(), &wanted(), DType::F32).expect("the file that the others are made from");

    let entry = |entry: &str, data| file(&format!(r#"{{"a":{entry}}}"#), data);
    let mut cut = good.clone();
    cut.pop();
    let mut long = good.clone();
    long.push(0);
    let length = |length: u64| [&length.to_le_bytes(), &good[8..]].concat();
    let deep = "[".repeat(100_000);
    #[rustfmt::skip]
    let table: Vec<(Vec<u8>, &str)> = vec![
        (vec![], "it has 0 bytes (expected at least 8)"),
        (vec![0; 7], "it has 7 bytes (expected at least 8)"),
        (vec![0; 8], "EOF while parsing a value"),
        (length(1 << 63), "is not a safetensors file"),
        (length(u64::MAX), "is not a safetensors file"),
        (length(100_000_001), "its header of 100000001 bytes is too long"),
        (length(1000), "its header of 1000 bytes exceeds its 70 bytes"),
        (cut, "its header puts `a` at bytes 0 to 8, but only 7 follow: the file may be truncated"),
        (long, "bytes 8 to 9 of the data are of no tensor"),
        (file("not json at all", 8), "expected ident"),
        (file("[]", 8), "invalid type: sequence"),
        (file(&deep, 8), "invalid type: sequence"),
        (file(&format!(r#"{{"a":{deep}"#), 8), "`a`: invalid type: sequence, expected a string"),
        (file("{\"a\u{0}\":1}", 8), "control character"),
        ([&6u64.to_le_bytes()[..], b"{\"\xff\":1"].concat(), "invalid unicode code point"),
        (file("{}", 0), "`a` is missing (expected [2])"),
        (entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#, 8), "`a` comes twice"),
        (entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[-1,8]}"#, 8), "`a`: invalid value: integer `-1`"),
        (entry(r#"{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}"#, 8), "`a`: invalid value: integer `-2`"),
        (entry(r#"{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}"#, 8), "`a`: invalid type: floating point"),
        (entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[8,0]}"#, 8), "its header puts `a` at bytes 8 to 0, which end before they begin"),
        (entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,9999]}"#, 8), "its header puts `a` at bytes 0 to 9999, but only 8 follow"),
        (entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[8,16]}"#, 16), "`a` begins at byte 8 of the data (expected 0)"),
        (entry(r#"{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}"#, 8), "its header says that `a` is F32 [4294967296, 4294967296] in 8 bytes"),
        (entry(r#"{"dtype":"F32","shape":[3],"data_offsets":[0,8]}"#, 8), "its header says that `a` is F32 [3] in 8 bytes"),
        (entry(r#"{"dtype":"F4","shape":[1],"data_offsets":[0,0]}"#, 0), "its header says that `a` is F4 [1] in 0 bytes"),
        (entry(r#"{"dtype":"F4","shape":[16],"data_offsets":[0,8]}"#, 8), "`a` in `model.safetensors` is [16] (expected [2])"),
        (entry(r#"{"dtype":"F99","shape":[2],"data_offsets":[0,8]}"#, 8), "`a`: unknown variant `F99`"),
        (entry(r#"{"dtype":"I32","shape":[2],"data_offsets":[0,8]}"#, 8), "`a` in `model.safetensors` is I32 (expected F32, BF16, F16 or F64)"),
        (entry(r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#, 0), "`a` in `model.safetensors` is [0] (expected [2])"),
        (entry(r#"{"dtype":"F32","shape":[],"data_offsets":[0,4]}"#, 4), "`a` in `model.safetensors` is [] (expected [2])"),
        (entry(r#"{"dtype":"F32","data_offsets":[0,8]}"#, 8), "`a`: missing field `shape`"),
        (entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}"#, 12), "`b` begins at byte 4 of the data (expected 8)"),
        (entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}"#, 20), "`b` begins at byte 12 of the data (expected 8)"),
        (file(r#"{"__metadata__":{"a":1}}"#, 0), "invalid type: integer `1`, expected a string"),
    ];
    for (bytes, said) in &table {
        let found = complaint_of(bytes);
        assert!(found.contains(said), "wanted: {said}\nfound: {found}");
        assert!(found.contains("FOLDER"), "{found}");
    }
}

/// Offsets whose sum exceeds 64 bits, although each alone does not.
#[test]
fn extents_beyond_the_file_are_refused_before_they_are_added_up() {
    let size = (1u64 << 61) - 1;
    let entries: Vec<String> = (0..8)
        .map(|i| {
            let (begin, end) = (i * size, (i + 1) * size);
            format!(r#""{i}":{{"dtype":"U8","shape":[{size}],"data_offsets":[{begin},{end}]}}"#)
        })
        .collect();
    let found = complaint_of(&file(&format!("{{{}}}", entries.join(",")), 8));
    assert!(
        found.contains("its header puts `0` at bytes 0 to 2305843009213693951, but only 8 follow"),
        "{found}"
    );
}

#[test]
fn a_million_tensors_are_not_even_parsed() {
    let entries: Vec<String> = (0..1_000_000)
        .map(|i| format!(r#""{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#))
        .collect();
    let bytes = file(&format!("{{{}}}", entries.join(",")), 0);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    // The time that the disk takes for tens of megabytes does not count.
    let before = std::time::Instant::now();
    let found = complaint(folder.path());
    assert!(found.contains("bytes is too long (expected at most 4194304)"), "{found}");
    assert!(before.elapsed().as_secs() < 2, "took {:?}", before.elapsed());
}

/// Many shards whose headers are too long together, although none is alone.
#[test]
fn shards_share_the_room_for_headers() {
    let folder = tempfile::tempdir().unwrap();
    let header = format!("{GOOD}{}", " ".repeat((3 << 20) - GOOD.len()));
    for name in ["1", "2"] {
        fs::write(folder.path().join(name), file(&header, 8)).unwrap();
    }
    let index = folder.path().join("model.safetensors.index.json");
    fs::write(&index, r#"{"weight_map":{"a":"1"}}"#).unwrap();
    load(folder.path(), &wanted(), DType::F32).expect("one of them alone");
    fs::write(&index, r#"{"weight_map":{"a":"1","b":"2"}}"#).unwrap();
    let found = complaint(folder.path());
    let said =
        "its header of 3145728 bytes is too long (expected at most 1048576: 4194304 for all files";
    assert!(found.contains("FOLDER/2") && found.contains(said), "{found}");
}

#[test]
fn what_a_file_says_is_printed_without_control_characters_and_not_at_length() {
    let name = "x".repeat(100_000);
    let found = complaint_of(&file(
        &format!(r#"{{"\u001b[2J\n{name}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}}}"#),
        0,
    ));
    assert!(found.contains("\\u001b[2J\\nxxx"), "{found}");
    assert!(found.len() < 1000, "{} bytes", found.len());
    let found = complaint_of(&file(
        &format!(r#"{{"a":{{"dtype":"{name}","shape":[0],"data_offsets":[0,0]}}}}"#),
        0,
    ));
    assert!(found.len() < 1000, "{} bytes", found.len());
}

/// Every file that differs from a good one in one bit, or is cut short anywhere, loads or is
/// refused; nothing panics.
#[test]
fn flipped_bits_and_cuts() {
    let good = file(GOOD, 8);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    for bit in 0..(good.len() - 8) * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, bytes).unwrap();
        // A flipped bit of the dtype may give another that fits; the shape can be no other.
        if let Ok(weights) = load(folder.path(), &wanted(), DType::F32) {
            assert_eq!(weights["a"].dims(), [2]);
        }
    }
    for length in 0..good.len() {
        fs::write(&path, &good[..length]).unwrap();
        load(folder.path(), &wanted(), DType::F32).expect_err("a file cut short was loaded");
    }
}

#[test]
fn shards_are_plain_file_names_inside_the_folder() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret.safetensors"), file(GOOD, 8)).unwrap();
    let folder = outside.path().join("model");
    fs::create_dir(&folder).unwrap();
    fs::create_dir(folder.join("nested")).unwrap();
    fs::write(folder.join("here.safetensors"), file(GOOD, 8)).unwrap();
    fs::write(folder.join("nested/a.safetensors"), file(GOOD, 8)).unwrap();
    let absolute = outside.path().join("secret.safetensors").display().to_string();
    let plain = "(expected a plain file name)";
    let table = [
        (absolute.as_str(), plain),
        ("/etc/passwd", plain),
        ("../secret.safetensors", plain),
        ("nested/a.safetensors", plain),
        ("./here.safetensors", plain),
        ("here.safetensors/", plain),
        ("..\\\\secret.safetensors", plain),
        ("c:here.safetensors", plain),
        ("here.safetensors\\u0000", plain),
        ("..", plain),
        (".", plain),
        ("", plain),
        ("nested", "is not a regular file"),
        (
            "Here.safetensors",
            "the shard `Here.safetensors` does not exist; the index has `a` in it",
        ),
    ];
    for (name, said) in table {
        let index = format!(r#"{{"weight_map":{{"a":"{name}"}}}}"#);
        fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
        let found = complaint(&folder);
        assert!(found.contains(said), "{name}: {found}");
    }
}

#[test]
fn hostile_indices() {
    let table = [
        ("", "EOF while parsing a value"),
        ("{}", "missing field `weight_map`"),
        (r#"{"weight_map":{}}"#, "its `weight_map` is empty"),
        (r#"{"weight_map":[]}"#, "invalid type: sequence, expected an object"),
        (r#"{"weight_map":{"a":1}}"#, "`a`: invalid type: integer `1`, expected a string"),
        (r#"{"weight_map":{"a":"1","a":"2"}}"#, "`a` comes twice"),
        (r#"{"weight_map":{"a":"1"},"weight_map":{"a":"2"}}"#, "duplicate field `weight_map`"),
        (&format!("{{\"a\":{}", "[".repeat(100_000)), "EOF while parsing"),
        (&" ".repeat(5 << 20), "an index of 5242880 bytes is too long (expected at most 4194304)"),
    ];
    for (index, said) in table {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
        let found = complaint(folder.path());
        assert!(found.contains(said), "wanted: {said}\nfound: {found}");
        assert!(found.contains("FOLDER/model.safetensors.index.json"), "{found}");
    }
}

#[test]
fn folders_without_weights() {
    let folder = tempfile::tempdir().unwrap();
    let found = complaint(folder.path());
    assert_eq!(
        found,
        "`FOLDER` holds neither `model.safetensors` nor `model.safetensors.index.json`"
    );
    let missing = folder.path().join("missing");
    assert!(complaint(&missing).starts_with("cannot read `FOLDER`: "));
    fs::create_dir(folder.path().join("model.safetensors")).unwrap();
    assert_eq!(complaint(folder.path()), "`FOLDER/model.safetensors` is not a regular file");
}

#[cfg(unix)]
#[test]
fn links_may_not_leave_the_folder_but_for_the_cache_of_hugging_face() {
    use std::os::unix::fs::symlink;

    let root = tempfile::tempdir().unwrap();
    let secret = root.path().join("secret.safetensors");
    fs::write(&secret, file(GOOD, 8)).unwrap();
    let folder = root.path().join("model");
    fs::create_dir(&folder).unwrap();
    symlink(&secret, folder.join("model.safetensors")).unwrap();
    assert!(matches!(
        load(&folder, &wanted(), DType::F32),
        Err(WeightsError::Outside { target, .. }) if target.ends_with("secret.safetensors")
    ));

    fs::remove_file(folder.join("model.safetensors")).unwrap();
    symlink("nowhere", folder.join("model.safetensors")).unwrap();
    assert!(complaint(&folder).starts_with("cannot read `FOLDER/model.safetensors`: "));

    let repository = root.path().join("models--some--model");
    let snapshot = repository.join("snapshots").join("0123abcd");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir(repository.join("blobs")).unwrap();
    fs::rename(&secret, repository.join("blobs").join("4567")).unwrap();
    symlink("../../blobs/4567", snapshot.join("model.safetensors")).unwrap();
    assert_eq!(load(&snapshot, &wanted(), DType::F32).unwrap().len(), 1);
}

/// A file's size proves nothing about its content: this one takes no space on disk, and must take none in memory.
#[test]
fn a_sparse_terabyte_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let sparse = File::create(folder.path().join("model.safetensors")).unwrap();
    if sparse.set_len(1 << 40).is_err() {
        eprintln!("skipped: the file system has no sparse files");
        return;
    }
    let found = complaint(folder.path());
    assert!(found.contains("EOF while parsing a value"), "{found}");
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let weights = Weights::from([("a".to_owned(), Tensor::new(&[1f32], &Device::Cpu).unwrap())]);
    let folder = tempfile::tempdir().unwrap().path().join("missing");
    let error = save(&folder, &weights, u64::MAX).unwrap_err();
    assert!(matches!(error, WeightsError::Write { ref file, .. } if file.starts_with(&folder)));
}
