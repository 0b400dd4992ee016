//! Models of the hub, from one of the tests' own: what arrives is whole or not there, whatever
//! happens on the way, and lies where Hugging Face's programs look for it.

mod commits;
mod program;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use annulus_hub::{Event, Fetched, HubError, Name, Options, Want, fetch};
use annulus_tests::hub::{Asked, COMMIT, Fault, File, Hub};

const NAME: &str = "owner/model";
const WEIGHTS: &str = "model.safetensors";
const LARGE: usize = 3_000_000;

/// Bytes that are not alike.
fn noise(length: usize) -> Vec<u8> {
    (0..length as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn hub() -> Hub {
    let files = [
        ("config.json", File::small("{}")),
        ("README.md", File::small("read me")),
        (WEIGHTS, File::large(noise(LARGE))),
    ];
    Hub::new(NAME, files)
}

struct Client {
    /// Gone when this is.
    _folder: tempfile::TempDir,
    options: Options,
}

impl Client {
    fn new(hub: &Hub) -> Client {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let options = Options {
            endpoint: hub.endpoint(),
            cache: folder.path().join("hub"),
            token: None,
            offline: false,
            patience: Duration::from_secs(20),
            verify: false,
        };
        Client { _folder: folder, options }
    }

    fn fetch(&self, revision: &str, want: Want) -> Result<Fetched, HubError> {
        self.watched(revision, want, &mut |_| true)
    }

    fn watched(
        &self,
        revision: &str,
        want: Want,
        progress: &mut dyn FnMut(Event) -> bool,
    ) -> Result<Fetched, HubError> {
        let name: Name = format!("hf://{NAME}@{revision}").parse().expect("a name");
        fetch(&name, want, &self.options, progress)
    }

    /// Everything, of main.
    fn whole(&self) -> Result<Fetched, HubError> {
        self.fetch("main", Want::Weights)
    }

    fn repository(&self) -> PathBuf {
        self.options.cache.join("models--owner--model")
    }

    /// The names of what lies among the blobs.
    fn blobs(&self) -> Vec<String> {
        let entries = fs::read_dir(self.repository().join("blobs")).into_iter().flatten();
        let name = |entry: std::io::Result<fs::DirEntry>| {
            entry.expect("readable").file_name().to_string_lossy().into_owned()
        };
        let mut names: Vec<_> = entries.map(name).collect();
        names.sort();
        names
    }
}

#[track_caller]
fn weights_are_whole(fetched: &Fetched) {
    assert!(fs::read(fetched.folder.join(WEIGHTS)).expect("weights") == noise(LARGE));
}

/// Where the requests for the weights began.
fn begins(asked: &[Asked]) -> Vec<usize> {
    asked.iter().filter(|asked| asked.elsewhere).map(|asked| asked.from).collect()
}

#[test]
fn a_model_lies_where_other_programs_look_for_it() {
    let hub = hub();
    let client = Client::new(&hub);
    let mut seen = (0, 0);
    let fetched = client.watched("main", Want::Weights, &mut |event| {
        if let Event::Arrived { bytes, total } = event {
            seen = (bytes, total);
        }
        true
    });
    let fetched = fetched.expect("it is there");
    assert_eq!(seen, (LARGE as u64, LARGE as u64));
    assert_eq!(fetched.name.to_string(), format!("hf://{NAME}@{COMMIT}"));
    let repository = client.repository();
    assert_eq!(fetched.folder, repository.join("snapshots").join(COMMIT));
    weights_are_whole(&fetched);
    assert_eq!(fs::read_to_string(repository.join("refs/main")).expect("a ref"), COMMIT);
    let hash = File::large(noise(LARGE)).hash();
    let link = fs::read_link(fetched.folder.join(WEIGHTS)).expect("a link");
    assert_eq!(link, Path::new("../../blobs").join(&hash));
    let mut blobs = vec![hash, File::small("{}").hash()];
    blobs.sort();
    assert_eq!(client.blobs(), blobs, "nothing else was fetched, and nothing is unfinished");
}

#[test]
fn what_is_there_is_not_asked_for_again() {
    let hub = hub();
    let client = Client::new(&hub);
    let paths = || hub.asked().into_iter().map(|asked| asked.path).collect::<Vec<_>>();
    client.fetch("main", Want::Description).expect("it is there");
    let listing = format!("/api/models/{NAME}/revision/main?blobs=true");
    let file = |name: &str| format!("/{NAME}/resolve/{COMMIT}/{name}");
    assert_eq!(paths(), [listing.clone(), file("config.json")]);
    client.whole().expect("it is there");
    let asked = paths();
    assert_eq!(asked[..2], [listing.clone(), file(WEIGHTS)]);
    client.whole().expect("it is there");
    assert_eq!(paths(), [listing], "a branch may have moved");
    client.fetch(COMMIT, Want::Weights).expect("it is there");
    assert_eq!(paths(), [""; 0], "a commit never moves");
}

#[test]
fn a_token_goes_to_the_hub_alone() {
    let hub = hub();
    hub.manners(|manners| manners.token = Some("hf_secret".to_owned()));
    let mut client = Client::new(&hub);
    for (token, said) in [(None, "everybody"), (Some("hf_other".to_owned()), "this token")] {
        client.options.token = token;
        let error = client.whole().expect_err("it is private");
        assert!(matches!(error, HubError::Refused { status: 401, .. }), "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
    assert!(!format!("{:?}", client.options).contains("hf_other"));
    hub.asked();
    client.options.token = Some("hf_secret".to_owned());
    weights_are_whole(&client.whole().expect("it may be read"));
    for asked in hub.asked() {
        assert_eq!(asked.token, !asked.elsewhere, "{asked:?}");
    }
}

#[test]
fn a_connection_that_breaks_is_gone_on_with() {
    let hub = hub();
    hub.file(WEIGHTS, |file| file.cuts = vec![1_000_000, 1_000_000, 2_500_000]);
    hub.manners(|manners| manners.busy = 2);
    let client = Client::new(&hub);
    weights_are_whole(&client.whole().expect("it arrives in the end"));
    assert_eq!(begins(&hub.asked()), [0, 1_000_000, 1_000_000, 2_500_000]);
}

#[test]
fn a_connection_that_brings_nothing_is_given_up() {
    let hub = hub();
    hub.file(WEIGHTS, |file| file.cuts = vec![1_000_000; 7]);
    let client = Client::new(&hub);
    let error = client.whole().expect_err("it never arrives");
    assert!(matches!(error, HubError::Network { .. }), "{error}");
    // One brings something, five do not; the rest comes with the next call.
    assert_eq!(begins(&hub.asked()).len(), 6);
    weights_are_whole(&client.whole().expect("it arrives"));
    assert_eq!(begins(&hub.asked()), [1_000_000, 1_000_000]);
}

#[test]
fn what_was_stopped_goes_on() {
    let hub = hub();
    let client = Client::new(&hub);
    let error = client.watched(
        "main",
        Want::Weights,
        &mut |event| !matches!(event, Event::Arrived { bytes, .. } if bytes >= 1_000_000),
    );
    assert!(matches!(error, Err(HubError::Stopped)));
    hub.asked();
    weights_are_whole(&client.whole().expect("it arrives"));
    let begins = begins(&hub.asked());
    assert!(matches!(begins[..], [from] if (1_000_000..LARGE).contains(&from)), "{begins:?}");
}

#[test]
fn a_server_without_ranges_sends_the_file_again() {
    let hub = hub();
    hub.file(WEIGHTS, |file| {
        file.cuts = vec![1_000_000];
        file.fault = Some(Fault::NoRanges);
    });
    let client = Client::new(&hub);
    weights_are_whole(&client.whole().expect("it arrives"));
}

#[test]
fn what_is_not_what_the_hub_says_is_not_kept() {
    let hub = hub();
    let client = Client::new(&hub);
    let config = File::small("{}").hash();
    for fault in [Fault::Damaged, Fault::Longer] {
        hub.file(WEIGHTS, |file| file.fault = Some(fault));
        let error = client.whole().expect_err("it is damaged");
        assert!(matches!(error, HubError::Damaged { .. }), "{error}");
        assert_eq!(client.blobs(), [config.as_str()]);
        assert!(!client.repository().join("snapshots").join(COMMIT).join(WEIGHTS).exists());
    }
    hub.file(WEIGHTS, |file| file.fault = None);
    // A small one is held to git's hash.
    hub.file("tokenizer.json", |file| {
        *file = File { fault: Some(Fault::Damaged), ..File::small("{ }") };
    });
    let error = client.whole().expect_err("it is damaged");
    assert!(error.to_string().contains("git blob"), "{error}");
    hub.file("tokenizer.json", |file| file.fault = None);
    weights_are_whole(&client.whole().expect("it is mended"));
}

#[test]
fn the_rest_of_another_day_does_no_harm() {
    for rest in [vec![9; 1000], vec![9; LARGE], vec![9; LARGE + 5]] {
        let hub = hub();
        let client = Client::new(&hub);
        client.fetch("main", Want::Description).expect("it is there");
        let hash = File::large(noise(LARGE)).hash();
        fs::write(client.repository().join("blobs").join(format!("{hash}.incomplete")), rest)
            .expect("a file");
        weights_are_whole(&client.whole().expect("it arrives"));
    }
}

#[test]
fn a_hub_that_says_little_is_asked_beside_the_file() {
    let hub = hub();
    hub.manners(|manners| manners.terse = true);
    let client = Client::new(&hub);
    hub.file(WEIGHTS, |file| file.cuts = vec![0, 1_000_000]);
    weights_are_whole(&client.whole().expect("it arrives"));
}

#[test]
fn what_is_not_there_is_named() {
    let hub = hub();
    let client = Client::new(&hub);
    let error = client.fetch("v2", Want::Weights).expect_err("there is no such revision");
    assert_eq!(error.to_string(), "the revision of `hf://owner/model@v2` is not on the hub");
    let options = &client.options;
    let other: Name = "hf://owner/other".parse().expect("a name");
    let error = fetch(&other, Want::Weights, options, &mut |_| true).expect_err("nor such a model");
    assert_eq!(error.to_string(), "`hf://owner/other@main` is not on the hub");
    let hub = Hub::new(NAME, [("config.json", File::small("{}"))]);
    let client = Client::new(&hub);
    assert!(matches!(client.whole(), Err(HubError::NoWeights { .. })));
    let hub = Hub::new(NAME, [("README.md", File::small("read me"))]);
    let error = Client::new(&hub).whole().expect_err("no config.json");
    assert_eq!(error.to_string(), "`config.json` of `hf://owner/model@main` is not on the hub");
}

#[test]
fn shards_are_those_that_the_index_names() {
    const INDEX: &str = "model.safetensors.index.json";
    const SHARD: &str = "model-00001-of-00001.safetensors";
    let index = |file: &str| format!(r#"{{"weight_map": {{"a": "{file}"}}}}"#);
    let files = [
        ("config.json", File::small("{}")),
        (INDEX, File::small(index(SHARD))),
        (SHARD, File::large(noise(1000))),
        ("model-00009-of-00001.safetensors", File::large(noise(999))),
    ];
    let hub = Hub::new(NAME, files);
    let client = Client::new(&hub);
    let fetched = client.whole().expect("it is there");
    assert_eq!(fs::read(fetched.folder.join(SHARD)).expect("a shard"), noise(1000));
    assert_eq!(client.blobs().len(), 3);
    for (file, wanted) in [
        ("../../../../x", "is not a plain file name"),
        ("/etc/passwd", "is not a plain file name"),
        ("absent.safetensors", "`absent.safetensors` of `hf://owner/model@main` is not on the hub"),
    ] {
        hub.file(INDEX, |found| found.bytes = index(file).into());
        let error = Client::new(&hub).whole().expect_err("it names what it must not");
        assert!(error.to_string().contains(wanted), "{error}");
    }
}

#[test]
fn offline_nobody_is_asked() {
    let hub = hub();
    let mut client = Client::new(&hub);
    client.options.offline = true;
    let error = client.whole().expect_err("nothing is there");
    assert!(error.to_string().contains("it was never fetched"), "{error}");
    client.options.offline = false;
    client.fetch("main", Want::Description).expect("it is there");
    hub.asked();
    client.options.offline = true;
    client.fetch("main", Want::Description).expect("it is there");
    let error = client.whole().expect_err("weights are not");
    assert!(error.to_string().contains("`model.safetensors` is missing"), "{error}");
    client.options.offline = false;
    let fetched = client.whole().expect("it arrives");
    hub.asked();
    client.options.offline = true;
    for revision in ["main", COMMIT] {
        assert_eq!(client.fetch(revision, Want::Weights).expect("it is there"), fetched);
    }
    assert!(hub.asked().is_empty());
}

#[test]
fn no_network_is_said() {
    let mut client = Client::new(&hub());
    // A port that nobody listens at any more.
    let nobody = TcpListener::bind("127.0.0.1:0").and_then(|at| at.local_addr()).expect("a port");
    client.options.endpoint = format!("http://{nobody}");
    let error = client.whole().expect_err("nobody is there");
    assert!(matches!(error, HubError::Network { cached: false, .. }), "{error}");
    assert!(error.to_string().contains(&nobody.to_string()), "{error}");
    let hub = hub();
    client.options.endpoint = hub.endpoint();
    client.whole().expect("it arrives");
    client.options.endpoint = format!("http://{nobody}");
    let error = client.whole().expect_err("nobody is there");
    assert!(matches!(error, HubError::Network { cached: true, .. }), "{error}");
    assert!(error.hint().expect("a hint").contains("HF_HUB_OFFLINE=1"));
}

#[test]
fn a_blob_that_was_altered_is_fetched_again_and_offline_is_named() {
    let hub = hub();
    let mut client = Client::new(&hub);
    client.whole().expect("it arrives");
    let blob = client.repository().join("blobs").join(File::large(noise(LARGE)).hash());
    let before = fs::metadata(&blob).expect("a blob").modified().expect("a time");
    let mut altered = noise(LARGE);
    altered[7] ^= 1;
    fs::write(&blob, altered).expect("it is altered");
    // As a backup that is put back has it.
    fs::File::options()
        .append(true)
        .open(&blob)
        .and_then(|f| f.set_modified(before))
        .expect("it was old");
    client.options.offline = true;
    let error = client.whole().expect_err("it is not what it was");
    assert!(error.to_string().contains("`model.safetensors` is not what its hash says"), "{error}");
    client.options.offline = false;
    weights_are_whole(&client.whole().expect("it arrives again"));
    client.options.verify = true;
    hub.asked();
    weights_are_whole(&client.fetch(COMMIT, Want::Weights).expect("it is whole"));
    assert!(hub.asked().is_empty());
}

#[cfg(unix)]
#[test]
fn links_in_the_cache_are_not_written_through() {
    let hub = hub();
    let client = Client::new(&hub);
    client.fetch("main", Want::Description).expect("it is there");
    let victim = client.repository().join("victim");
    fs::write(&victim, "precious").expect("a file");
    let part = File::large(noise(LARGE)).hash() + ".incomplete";
    std::os::unix::fs::symlink(&victim, client.repository().join("blobs").join(part))
        .expect("a link");
    let error = client.whole().expect_err("it is a link");
    assert!(error.to_string().contains("it is a link"), "{error}");
    assert_eq!(fs::read_to_string(&victim).expect("it is there"), "precious");
}

#[test]
fn a_silent_hub_can_be_left_at_once() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut client = Client::new(&hub());
    client.options.endpoint = format!("http://{}", silent.local_addr().expect("it is bound"));
    let start = std::time::Instant::now();
    let stopped = client.watched("main", Want::Weights, &mut |_| start.elapsed().as_millis() < 200);
    assert!(matches!(stopped, Err(HubError::Stopped)));
    assert!(start.elapsed() < client.options.patience);
}
