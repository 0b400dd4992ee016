//! Files that are made to take more memory than they have bytes: each is refused, and takes less than
//! twice its size. Alone in its process, whose allocator counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write as _;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use annulus_model::{Placement, Specification, load};
use candle_core::DType;

/// An allocator that counts what is held, and its peak.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that an error and a list of files take.
const ALWAYS: usize = 64 << 10;

/// `text` repeated until it is just below the longest header.
fn repeated(text: impl Fn(usize) -> String) -> String {
    let mut all = String::new();
    for index in 0.. {
        let next = text(index);
        if all.len() + next.len() > (4 << 20) - 200 {
            break;
        }
        all += &next;
    }
    all
}

const ENTRY: &str = r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;

fn headers() -> Vec<(&'static str, String)> {
    let entries = repeated(|index| format!(r#""{index}":{ENTRY},"#));
    let metadata = repeated(|index| format!(r#""{index}":"","#));
    let (ones, letters) = (repeated(|_| "1,".to_owned()), repeated(|_| "x".to_owned()));
    let escapes = repeated(|_| "\\n".to_owned());
    vec![
        ("entries", format!(r#"{{{entries}"a":{ENTRY}}}"#)),
        ("metadata", format!(r#"{{"__metadata__":{{{metadata}"a":""}}}}"#)),
        (
            "dimensions",
            format!(r#"{{"a":{{"dtype":"F32","shape":[{ones}1],"data_offsets":[0,0]}}}}"#),
        ),
        ("a name", format!(r#"{{"{letters}":{ENTRY}}}"#)),
        ("a name of escapes", format!(r#"{{"{escapes}":{ENTRY}}}"#)),
        ("a name with one escape", format!(r#"{{"\n{letters}":{ENTRY}}}"#)),
        ("a type", format!(r#"{{"a":{{"dtype":"{letters}","shape":[0],"data_offsets":[0,0]}}}}"#)),
        ("a key that is unknown", format!(r#"{{"a":{{"\n{letters}":[{ones}1]}}}}"#)),
        ("a number", format!(r#"{{"a":{{"dtype":"F32","shape":[{}1]}}}}"#, ones.replace(',', ""))),
        ("depth", "{\"a\":".repeat(800_000)),
        ("nothing", " ".repeat((4 << 20) - 1)),
    ]
}

/// A single test: others' allocations would be counted.
#[test]
fn a_file_takes_less_than_twice_its_size() {
    let wanted = [Specification {
        name: "a".to_owned(),
        shape: vec![2],
        trained: true,
        placement: Placement::Replicated,
    }];
    let mut cases: Vec<(String, &str, Vec<u8>)> = Vec::new();
    for (title, header) in headers() {
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
        cases.push((format!("{title} in a header"), "model.safetensors", bytes));
        let index = "model.safetensors.index.json";
        cases.push((format!("{title} in an index"), index, header.into_bytes()));
    }
    let files = repeated(|index| format!(r#""{index}":"{index}","#));
    let index = format!(r#"{{"weight_map":{{{files}"a":"a"}}}}"#).into_bytes();
    cases.push(("shards".to_owned(), "model.safetensors.index.json", index));
    let claims = [&(100_u64 << 20).to_le_bytes()[..], b"{}"].concat();
    cases.push(("a header of 100 MB".to_owned(), "model.safetensors", claims));

    let mut said = String::new();
    for (title, name, bytes) in cases {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(name), &bytes).unwrap();
        let size = bytes.len();
        drop(bytes);
        let before = HELD.load(Ordering::Relaxed);
        MOST.store(before, Ordering::Relaxed);
        let refused = load(folder.path(), &wanted, DType::F32).is_err();
        let took = MOST.load(Ordering::Relaxed) - before;
        assert!(refused, "{title} was loaded");
        writeln!(said, "{title}: {took} bytes of {size}").unwrap();
        assert!(took < 2 * size + ALWAYS, "{title}: {took} bytes of memory for {size}");
    }
    println!("{said}");
}
