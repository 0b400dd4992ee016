//! Where two pieces of a text, encoded by themselves, can be joined.

/// Tokens in a row on which two pieces must agree.
const AGREE: usize = 8;

/// A token and its place in the document, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) id: u32,
    pub(super) start: usize,
    pub(super) end: usize,
    /// Whether it is the first of a word.
    pub(super) begins: bool,
}

impl Token {
    fn same(&self, other: &Token) -> bool {
        (self.id, self.start, self.end) == (other.id, other.start, other.end)
    }
}

/// The start of a token in the middle of a stretch on which `left` and `right` agree, if it is `sure`,
/// given the place and whether a word begins there in both, that the tokens of the left before it and
/// of the right after it are those of the whole.
pub(super) fn agreement(
    left: &[Token],
    right: &[Token],
    sure: &dyn Fn(usize, bool) -> bool,
) -> Option<usize> {
    let ordered = |tokens: &[Token]| tokens.is_sorted_by_key(|token| token.start);
    if !ordered(left) || !ordered(right) {
        return None;
    }
    let first = right.first()?.start;
    let mut left = &left[left.partition_point(|token| token.start < first)..];
    let mut right = right;
    let mut stretch = Stretch::default();
    while let (Some(ours), Some(theirs)) = (left.first(), right.first()) {
        if ours.same(theirs) {
            let begins = ours.begins && theirs.begins;
            if let Some(place) = stretch.grow(ours, &|place| sure(place, begins)) {
                return Some(place);
            }
            (left, right) = (&left[1..], &right[1..]);
        } else {
            stretch = Stretch::default();
            let (a, b) = (ours.start <= theirs.start, theirs.start <= ours.start);
            (left, right) = (&left[usize::from(a)..], &right[usize::from(b)..]);
        }
    }
    None
}

/// Tokens in a row on which two pieces agree.
#[derive(Default)]
struct Stretch {
    length: usize,
    /// Where the last token starts.
    last: usize,
    /// Where to join, and the length at that token.
    join: Option<(usize, usize)>,
}

impl Stretch {
    /// Takes the next token, at which it is `sure` to join or not; the place to join at, once there is
    /// one with enough tokens around it.
    fn grow(&mut self, token: &Token, sure: &dyn Fn(usize) -> bool) -> Option<usize> {
        self.length += 1;
        // The place must tell which tokens lie before: the one before starts earlier.
        let place = self.length > AGREE / 2 && token.start > self.last;
        if place && self.join.is_none() && sure(token.start) {
            self.join = Some((token.start, self.length));
        }
        self.last = token.start;
        self.join.filter(|(_, length)| self.length >= length + AGREE / 2).map(|(start, _)| start)
    }
}
