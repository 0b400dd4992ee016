//! The support matrix as the documentation has it.

use std::fs;
use std::path::Path;

use annulus_plan::support;

const BEGIN: &str = "<!-- annulus strategies -->\n";
const END: &str = "<!-- end -->";

#[test]
fn the_documentation_has_the_tables_that_are_made() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/STRATEGIES.md");
    let kept = fs::read_to_string(path).expect("the documentation is kept");
    let (_, after) = kept.split_once(BEGIN).expect("the tables begin");
    let (kept, _) = after.split_once(END).expect("the tables end");
    let how =
        "write the output of `annulus strategies` between its marks in experiments/STRATEGIES.md";
    assert_eq!(kept.trim(), support().trim(), "{how}");
}

#[test]
fn no_cell_is_blank_and_whatever_is_refused_has_a_way_out() {
    let text = support();
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let tables = text.lines().filter(|line| line.starts_with("| `"));
    let answers: Vec<String> = tables.flat_map(|line| cells(line).split_off(1)).collect();
    assert!(answers.iter().all(|cell| cell == "yes" || cell == "**no**"), "{text}");
    let refused = answers.iter().filter(|cell| *cell == "**no**").count();
    println!("{} combinations, {refused} refused", answers.len());
    assert!(refused > 15 && refused < answers.len() / 4, "{text}");
    let (first, said) = text.split_once("The error message for every `no`:").expect("messages");
    let first = first.split("| mask").next().expect("exceptions first");
    assert!(first.contains("- mask: none\n") && first.contains("zigzag"), "{first}");
    let refusals: Vec<&str> = said.lines().filter(|line| line.starts_with("- ")).collect();
    assert!(refusals.len() > 5, "{text}");
    for refusal in refusals {
        let (_, hint) = refusal.rsplit_once(": ").expect("a message and a hint");
        assert!(!hint.is_empty(), "no way out: {refusal}");
    }
}
