//! Records in one JSON array, which is read by no format.

use annulus_data::{Cache, DataError, Records, Texts, Tokenizer};

/// As Alpaca's records come.
#[test]
fn an_array_of_records_is_named_with_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.json");
    let long = format!("[{{\"text\": \"{}\"}}]", "a".repeat((1 << 26) + 1));
    for text in
        ["[{\"text\": \"a\"}]", "[\n  {\n    \"text\": \"a\"\n  }\n]\n", " [ {", long.as_str()]
    {
        std::fs::write(&path, text).unwrap();
        let texts = Texts::new(std::slice::from_ref(&path), Records::Lines, &Tokenizer::Bytes);
        let error = Cache::temporary(&texts, &mut |_| ()).unwrap_err();
        let said = error.to_string();
        assert!(said.ends_with("line 1: a JSON array of records, not a JSON object in each line"));
        let shown = path.display();
        let hint = format!("`jq -c '.[]' {shown} > {shown}l`");
        assert!(error.hint().unwrap().ends_with(&hint), "{:?}", error.hint());
    }
    // A folder of such files, whatever is in them.
    let inputs = [folder.path().to_owned()];
    let texts = Texts::new(&inputs, Records::Chats, &Tokenizer::Bytes);
    let hint = Cache::temporary(&texts, &mut |_| ()).unwrap_err().hint().unwrap();
    let shown = path.display();
    assert!(hint.ends_with(&format!("`jq -c '.[]' {shown} > {shown}l`")), "{hint}");
    let texts = Texts::new(&inputs, Records::Rows, &Tokenizer::Bytes);
    let hint = Cache::temporary(&texts, &mut |_| ()).unwrap_err().hint().unwrap();
    assert!(hint.starts_with("name another folder"), "{hint}");
    // A packed file keeps its own name, and a `.jsonl` is not written over itself.
    for (name, wanted) in [
        ("b.jsonl", "`jq -c '.[]' b.jsonl > b.lines.jsonl`"),
        ("b.json.zst", "`zstd -dc b.json.zst | jq -c '.[]' > b.jsonl`"),
        ("b.json.gz", "`gzip -dc b.json.gz | jq -c '.[]' > b.jsonl`"),
    ] {
        let json = Some(name.into());
        let error = DataError::NoFiles { path: "in".into(), endings: String::new(), json };
        assert!(error.hint().unwrap().ends_with(wanted), "{:?}", error.hint());
    }
}
