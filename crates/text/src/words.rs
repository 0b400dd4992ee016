//! Numbers with nouns.

/// A number with its noun, which is given for one: `3 ranks`, `1 rank`.
pub fn count(number: usize, noun: &str) -> String {
    format!("{number} {}", plural(noun, number))
}

/// The noun, which is given for one, of so many: `ranks`, `batches`, `processes`; of one as it is.
pub fn plural(noun: &str, number: usize) -> String {
    let ending = match number {
        1 => "",
        _ if noun.ends_with(['h', 's']) => "es",
        _ => "s",
    };
    format!("{noun}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_none_is_not() {
        assert_eq!([0, 1, 2].map(|ranks| count(ranks, "rank")), ["0 ranks", "1 rank", "2 ranks"]);
        assert_eq!(
            ["micro-batch", "process"].map(|noun| plural(noun, 2)),
            ["micro-batches", "processes"]
        );
    }
}
