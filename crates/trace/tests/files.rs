//! A small trace by hand: what is written is read, is what the format asks for, and comes to what a
//! person adds up.

use annulus_trace::testing::check;
use annulus_trace::{
    Activity, AttentionTimes, MOST_RANKS, Moved, Pass, Place, RankLocation, Span, Sums, Tile,
    Trace, TracedBlock, links,
};
use serde_json::Value;

fn piece(part: &str, owner: usize) -> TracedBlock {
    TracedBlock { part: part.to_owned(), owner, heads: [0, 2], rows: [0, 8] }
}

fn place(hop: usize) -> Place {
    Place { layer: 0, pass: Pass::Forward, hop }
}

fn moved(from: usize, to: usize) -> Moved {
    Moved { block: piece("k", from), from, to, bytes: 100, planned_bytes: 100 }
}

/// One of two ranks in one micro-batch, from `at` on: posts for 10, computes for 90 or 190, waits.
fn rank(rank: usize, at: u64, computes: u64, waits_until: u64) -> Vec<Span> {
    let other = 1 - rank;
    let span = |begin: u64, end: u64, activity: Activity| Span {
        begin: at + begin,
        end: at + end,
        activity,
    };
    let tile = Tile { queries: piece("q", rank), keys: piece("k", rank) };
    let (sent, came) = (moved(rank, other), moved(other, rank));
    let computed = 10 + computes;
    vec![
        span(2, 8, Activity::Send { place: place(0), moved: sent }),
        span(0, 10, Activity::Post { place: place(0), bytes: 100, receives: 1 }),
        span(10, computed, Activity::Compute { place: place(0), tiles: vec![tile], pairs: 36 }),
        span(
            computed,
            waits_until,
            Activity::Wait { place: place(0), moved: came, flight: waits_until - 10 },
        ),
        span(0, waits_until, Activity::Stage { name: String::from("layers.0") }),
    ]
}

/// The small trace with each rank in a process of its own, on `hosts` hosts.
fn apart(hosts: usize) -> Trace {
    let location = |process| RankLocation { process, host: format!("host {}", process % hosts) };
    Trace { locations: (0..2).map(location).collect(), ..small() }
}

/// A small trace: rank 1 begins 150 later, and rank 0 waits for it; then both repeat it together.
fn small() -> Trace {
    let first = [rank(0, 1000, 90, 190), rank(1, 1150, 190, 201)];
    let second = [rank(0, 2000, 90, 101), rank(1, 2000, 190, 201)];
    let ranks = first.into_iter().zip(second).map(|(first, second)| [first, second].concat());
    Trace {
        title: String::from("small, ring"),
        step: Some(7),
        planned: None,
        locations: Vec::new(),
        ranks: ranks.collect(),
    }
}

#[test]
fn what_is_written_is_read_and_is_a_trace() {
    let trace = small();
    let text = trace.to_json();
    assert_eq!(check(&text), Ok(4));
    let read = Trace::from_json(&text).expect("ours");
    // The clock of a file starts with its first span, and in a file what holds others comes first.
    assert_eq!((&read.title, read.step, &read.planned), (&trace.title, trace.step, &None));
    assert_eq!(read.to_json(), text);
    let sorted = |spans: &[Span], start: u64| {
        let mut spans: Vec<String> = spans
            .iter()
            .map(|span| format!("{} {} {:?}", span.begin - start, span.end - start, span.activity))
            .collect();
        spans.sort();
        spans
    };
    for (read, written) in read.ranks.iter().zip(&trace.ranks) {
        assert_eq!(sorted(read, 0), sorted(written, 1000));
    }
    assert_eq!(Sums::of(&read), Sums::of(&trace));
}

#[test]
fn a_trace_of_as_many_ranks_as_a_run_may_have_is_read() {
    for (ranks, is_read) in [(MOST_RANKS, true), (MOST_RANKS + 1, false)] {
        let trace = Trace { ranks: vec![Vec::new(); ranks], ..small() };
        let read = Trace::from_json(&trace.to_json()).map(|read| read.ranks.len());
        assert_eq!(read.ok(), is_read.then_some(ranks));
    }
}

#[test]
fn processes_are_lanes_and_their_ranks_are_tracks() {
    let trace = apart(2);
    let text = trace.to_json();
    assert_eq!(check(&text), Ok(4));
    let read = Trace::from_json(&text).expect("ours");
    assert_eq!((&read.locations, read.to_json()), (&trace.locations, text.clone()));
    assert_eq!(Sums::of(&read), Sums::of(&trace));
    let file: Value = serde_json::from_str(&text).expect("JSON");
    let events = file["traceEvents"].as_array().expect("events");
    let names = |kind: &str| -> Vec<(u64, u64, String)> {
        let named = events.iter().filter(|event| event["name"] == kind);
        let name = |event: &Value| {
            let number = |key: &str| event[key].as_u64().expect("a number");
            (number("pid"), number("tid"), event["args"]["name"].as_str().expect("a name").into())
        };
        named.map(name).collect()
    };
    let process = |process: u64| (process, 0, format!("host {process}, process {process}"));
    assert_eq!(names("process_name"), [process(0), process(1)]);
    assert_eq!(names("thread_name")[4], (1, 4, String::from("rank 1 attention")));
}

#[test]
fn what_goes_between_hosts_is_summed_apart() {
    let sums = Sums::of(&apart(2));
    let [between] = &sums.flows[..] else { panic!("{:?}", sums.flows) };
    assert_eq!((between.name, between.count, between.bytes), ("blocks between hosts", 4, 400));
    assert_eq!((between.waiting, between.late), (93, 58));
    assert!(sums.to_text(None).contains("by link"), "{}", sums.to_text(None));
    assert_eq!(sums.to_json()["links"][0]["bytes"], 400);
    assert_eq!(Sums::of(&apart(1)).flows[0].name, "blocks within a host");
    let threads = Sums::of(&small());
    assert!(threads.flows.is_empty() && !threads.to_text(None).contains("by link"));

    let mut summed = apart(2);
    for (rank, spans) in summed.ranks.iter_mut().enumerate() {
        let (name, among) = (String::from("loss"), (rank == 1).then_some([0, 0]));
        let activity = Activity::Sum { name, bytes: 16, among };
        spans.push(Span { begin: 3000, end: 3010 + rank as u64, activity });
    }
    let sums = Sums::of(&summed);
    let of_sums = sums.flows.iter().filter(|flow| flow.name.starts_with("sums"));
    let of_sums: Vec<_> = of_sums.map(|flow| (flow.name, flow.bytes, flow.waiting)).collect();
    assert_eq!(of_sums, [("sums within a host", 16, 11), ("sums between hosts", 16, 10)]);
}

#[test]
fn sums_are_those_of_a_person() {
    let sums = Sums::of(&small());
    let share = |rank: usize| sums.shares[&(0, Pass::Forward, rank)];
    // Rank 0 waits 90 and 1; of the former rank 1 takes until 1158 to send: 58.
    assert_eq!(
        share(0),
        AttentionTimes { computing: 180, waiting: 91, late: 58, flight: 180 + 91, bytes: 200 }
    );
    assert_eq!(
        share(1),
        AttentionTimes { computing: 380, waiting: 2, late: 0, flight: 382, bytes: 200 }
    );
    assert_eq!(share(0).overlap(), Some(1.0 - 91.0 / 271.0));
    assert_eq!(AttentionTimes::default().overlap(), None);
    assert_eq!(sums.lengths, [1101, 1051]);
    let worst = &sums.exposed[0];
    assert_eq!((worst.moved.from, worst.moved.to, worst.waiting, worst.late), (1, 0, 90, 58));
    let text = sums.to_text(None);
    assert!(text.contains("rank 0 waited 0.000 ms for k1 of rank 1"), "{text}");
}

#[test]
fn the_first_send_is_the_first_arrival() {
    let trace = small();
    let ways: Vec<(usize, u64, u64)> =
        links(&trace).iter().map(|l| (l.moved.from, l.sent.begin, l.came.end)).collect();
    assert_eq!(ways, [(0, 1002, 1351), (0, 2002, 2201), (1, 1152, 1190), (1, 2002, 2101)]);
}

#[test]
fn hops_and_pictures_are_of_the_first_micro_batch() {
    let trace = small();
    let moves = trace.moves(0);
    assert!(moves.starts_with("forward of layer 0, 1 hop\n"), "{moves}");
    assert_eq!(moves.matches("q0xk0").count(), 1, "{moves}");
    let svg = trace.to_svg(0);
    assert_eq!((svg.matches("#3b6fb5").count(), svg.matches("<circle").count()), (2, 2), "{svg}");
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert_eq!(trace.moves(1), "");
}

#[test]
fn pictures_name_hosts_where_there_are_several() {
    assert!(!apart(1).to_svg(0).contains("host 0"));
    let mut trace = apart(2);
    trace.locations[1].host = String::from("gpu-node-017.<rack>");
    let svg = trace.to_svg(0);
    // In both passes that there are.
    for (name, shown) in [("host 0", "host 0"), ("gpu-node-017.&lt;rack&gt;", "…node-017")] {
        let label = format!(">{shown}<title>{name}</title></text>");
        assert_eq!(svg.matches(&label).count(), 1, "{svg}");
    }
}

#[test]
fn planted_mistakes_are_found() {
    type Spoil = fn(&mut Trace);
    let cases: [(&str, Spoil); 4] = [
        ("outlives", |trace| trace.ranks[0][3].end = 2005),
        ("goes back", |trace| {
            let sent = &mut trace.ranks[1][0];
            (sent.begin, sent.end) = (1195, 1199);
        }),
        ("no span", |trace| {
            let waits = &mut trace.ranks[1][3];
            waits.end = waits.begin;
        }),
        ("outlives", |trace| trace.ranks[0][0].end = 1020),
    ];
    for (wanted, spoil) in cases {
        let mut trace = small();
        spoil(&mut trace);
        let found = check(&trace.to_json()).expect_err(wanted);
        assert!(found.contains(wanted), "{found}");
    }
}

#[test]
fn other_files_are_refused() {
    let good = small().to_json();
    for (wanted, text) in [
        ("not a trace", String::from("{}")),
        ("not a trace", String::from("[1, 2")),
        ("version 9", good.replace("\"version\":1", "\"version\":9")),
        ("at most 16384", good.replace("\"ranks\":2", "\"ranks\":99999999999")),
        ("have a process", apart(2).to_json().replace("\"ranks\":2", "\"ranks\":3")),
        ("of rank 1", good.replace("\"ranks\":2", "\"ranks\":1")),
        ("not as it was written", good.replace("\"doing\":\"wait\"", "\"doing\":\"dance\"")),
    ] {
        let error = Trace::from_json(&text).expect_err(wanted).to_string();
        assert!(error.contains(wanted), "{error}");
    }
}
