//! Commits that are whole in the cache, and what else of a repository belongs to them.

use std::fs;
use std::net::TcpListener;

use annulus_files::hugging_face::BESIDE_TOKENIZER;
use annulus_hub::{Event, HubError, Want};
use annulus_tests::hub::{COMMIT, File};

use super::{Client, WEIGHTS, hub};

/// As another program fetched it, which does not keep what a commit has not.
#[test]
fn a_commit_that_is_whole_needs_no_network() {
    let hub = hub();
    let mut client = Client::new(&hub);
    hub.file("chat_template.jinja", |file| *file = File::small("{{ messages }}"));
    let whole = client.whole().expect("it arrives");
    fs::remove_dir_all(client.repository().join(".no_exist")).expect("a folder");
    let nobody = TcpListener::bind("127.0.0.1:0").and_then(|at| at.local_addr()).expect("a port");
    client.options.endpoint = format!("http://{nobody}");
    let mut said = Vec::new();
    let taken = client.watched(COMMIT, Want::Weights, &mut |event| {
        if let Event::Unasked(why) = event {
            said.push(why);
        }
        true
    });
    assert_eq!((taken.expect("it is there"), said.len()), (whole.clone(), 1));
    let error = client.whole().expect_err("a branch may have moved");
    assert!(matches!(error, HubError::Network { cached: true, .. }), "{error}");
    // What is not what its hash says is not taken, however small it is.
    for file in ["chat_template.jinja", WEIGHTS] {
        let blob = whole.folder.join(file).canonicalize().expect("a blob");
        let bytes = fs::read(&blob).expect("a blob");
        fs::write(&blob, "{{ other }}").expect("it is altered");
        let error = client.fetch(COMMIT, Want::Weights).expect_err("it is not what it was");
        assert!(matches!(error, HubError::Network { cached: false, .. }), "{error}");
        client.options.offline = true;
        let error = client.fetch(COMMIT, Want::Weights).expect_err("it is not what it was");
        assert!(error.to_string().contains(&format!("`{file}` is not what its hash")), "{error}");
        client.options.offline = false;
        fs::write(&blob, bytes).expect("it is mended");
    }
}

/// What a model's text means must not depend on whether the model is named by its folder or by its name on the hub.
#[test]
fn all_files_of_a_tokenizer_are_fetched() {
    let hub = hub();
    for file in BESIDE_TOKENIZER {
        hub.file(file, |found| *found = File::small(file));
    }
    let client = Client::new(&hub);
    let fetched = client.fetch("main", Want::Description).expect("it arrives");
    for file in BESIDE_TOKENIZER {
        assert_eq!(fs::read_to_string(fetched.folder.join(file)).expect("a file"), file);
    }
}

#[test]
fn chat_templates_with_names_are_fetched_with_the_others() {
    let hub = hub();
    let named = "additional_chat_templates/rag.jinja";
    for (file, text) in [
        (named, "{{ rag }}"),
        ("additional_chat_templates/../../../x.jinja", "{{ out }}"),
        ("additional_chat_templates/a/x.jinja", "{{ below }}"),
        ("additional_chat_templates/x.txt", "none"),
    ] {
        hub.file(file, |found| *found = File::small(text));
    }
    let client = Client::new(&hub);
    let fetched = client.fetch("main", Want::Description).expect("it arrives");
    assert_eq!(fs::read_to_string(fetched.folder.join(named)).expect("a template"), "{{ rag }}");
    let mut blobs = ["{}", "{{ rag }}"].map(|text| File::small(text).hash());
    blobs.sort();
    assert_eq!(client.blobs(), blobs, "nothing else was fetched");
    hub.asked();
    assert_eq!(client.fetch(COMMIT, Want::Description).expect("it is there"), fetched);
    assert!(hub.asked().is_empty());
    for index in 0..101 {
        let file = format!("additional_chat_templates/{index}.jinja");
        hub.file(&file, |found| *found = File::small("{}"));
    }
    let error = Client::new(&hub).whole().expect_err("nobody has as many");
    assert!(error.to_string().contains("102 chat templates"), "{error}");
}
