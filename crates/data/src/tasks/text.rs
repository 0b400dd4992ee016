//! The texts of tasks: something to find among much else, a question, the beginning of its answer.

use crate::Task;
use crate::random::Draws;
use crate::tasks::words::{FILLER, WORDS, name, number, numbers, things, word};

const DIGITS: u32 = 7;
/// Numbers in a text where there are several, and variables behind the first of a chain.
const SEVERAL: usize = 4;
const COMMON: usize = 10;
const FREQUENT: usize = 3;

/// A text, and what should follow.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) prompt: String,
    answer: String,
    /// What must be in an answer, where order does not matter.
    pub(super) parts: Vec<String>,
}

impl Draft {
    fn one(prompt: String, answer: &str) -> Draft {
        Draft { prompt, answer: format!(" {answer}"), parts: Vec::new() }
    }

    fn list(prompt: String, parts: Vec<String>) -> Draft {
        Draft { prompt, answer: format!(" {}", parts.join(", ")), parts }
    }

    /// The text with its answer.
    pub(super) fn whole(&self) -> String {
        format!("{}{}", self.prompt, self.answer)
    }
}

impl Task {
    /// With so many pieces of filler.
    pub(super) fn draft(self, filler: usize, depth: f64, draws: &mut Draws) -> Draft {
        match self {
            Task::Needle => needles(filler, 1, Some(depth), draws),
            Task::Single => needles(filler, 1, None, draws),
            Task::MultiKey => needles(filler, SEVERAL, None, draws),
            Task::Passkey => passkey(filler, depth, draws),
            Task::Lines => lines(filler, depth, draws),
            Task::MultiValue => values(filler, draws),
            Task::Variables => variables(filler, draws),
            Task::CommonWords => common(filler, draws),
            Task::FrequentWords => frequent(filler, draws),
        }
    }
}

/// Filler with every sentence at its place, which is a share of the text; those of one place in their order.
fn within(filler: usize, mut sentences: Vec<(f64, String)>) -> String {
    sentences.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut sentences = sentences.into_iter().peekable();
    let mut text = String::new();
    for piece in 0..=filler {
        while let Some((_, sentence)) =
            sentences.next_if(|(place, _)| (place * filler as f64).round() as usize <= piece)
        {
            text.push_str(&sentence);
        }
        if piece < filler {
            text.push_str(FILLER[piece % FILLER.len()]);
        }
    }
    text
}

/// Somewhere.
fn anywhere(draws: &mut Draws) -> f64 {
    const STEPS: u64 = 1 << 20;
    draws.below(STEPS) as f64 / STEPS as f64
}

/// Numbers of so many things; the first is asked for, and lies at `depth`.
fn needles(filler: usize, count: usize, depth: Option<f64>, draws: &mut Draws) -> Draft {
    let (things, numbers) = (things(draws, count), numbers(draws, DIGITS, count));
    let tell = |index: usize, draws: &mut Draws| {
        let sentence =
            format!("The secret number of the {} is {}. ", things[index], numbers[index]);
        (depth.unwrap_or_else(|| anywhere(draws)), sentence)
    };
    let told = (0..count).map(|index| tell(index, draws)).collect();
    let (text, thing) = (within(filler, told), things[0]);
    let question =
        format!("\nWhat is the secret number of the {thing}? The secret number of the {thing} is");
    Draft::one(text + &question, &numbers[0])
}

fn passkey(filler: usize, depth: f64, draws: &mut Draws) -> Draft {
    let key = number(draws, 5);
    let told = format!("The pass key is {key}. Remember it. {key} is the pass key. ");
    let text = within(filler, vec![(depth, told)]);
    let begin = "Somewhere in this text there is a pass key. Find it and keep it in mind.\n";
    Draft::one(format!("{begin}{text}\nWhat is the pass key? The pass key is"), &key)
}

/// The line at `depth` is asked for.
fn lines(filler: usize, depth: f64, draws: &mut Draws) -> Draft {
    let mut names: Vec<usize> = (0..=filler).collect();
    draws.shuffle(&mut names);
    let asked = (depth * filler as f64).round() as usize;
    let (mut text, mut wanted) = (String::new(), String::new());
    for (index, &line) in names.iter().enumerate() {
        let content = number(draws, 5);
        text.extend(["line ", &name(line), ": its content is ", &content, "\n"]);
        if index == asked {
            wanted = content;
        }
    }
    let line = name(names[asked]);
    let question = format!("What is the content of line {line}? Its content is");
    Draft::one(format!("Every line has a content.\n{text}{question}"), &wanted)
}

/// All numbers of one thing, in the order of the text.
fn values(filler: usize, draws: &mut Draws) -> Draft {
    let (thing, numbers) = (things(draws, 1)[0], numbers(draws, DIGITS, SEVERAL));
    let mut places: Vec<f64> = (0..SEVERAL).map(|_| anywhere(draws)).collect();
    places.sort_by(f64::total_cmp);
    let tell = |(place, number): (f64, &String)| {
        (place, format!("One secret number of the {thing} is {number}. "))
    };
    let text = within(filler, places.into_iter().zip(&numbers).map(tell).collect());
    let question = format!(
        "\nWhat are all secret numbers of the {thing}? The secret numbers of the {thing} are"
    );
    Draft::list(text + &question, numbers)
}

/// Every variable but the first is set to the one before.
fn variables(filler: usize, draws: &mut Draws) -> Draft {
    let value = number(draws, 5);
    let mut names: Vec<String> = Vec::new();
    while names.len() <= SEVERAL {
        let next = word(draws.below(WORDS as u64) as usize).to_uppercase();
        if !names.contains(&next) {
            names.push(next);
        }
    }
    let mut places: Vec<f64> = names.iter().map(|_| anywhere(draws)).collect();
    places.sort_by(f64::total_cmp);
    let before = std::iter::once(&value).chain(&names);
    let told = places.into_iter().zip(names.iter().zip(before));
    let told = told.map(|(place, (name, to))| (place, format!("SET {name} = {to}. "))).collect();
    let text = within(filler, told);
    let question = format!("\nWhich variables have the value {value} in the end? They are");
    Draft::list(text + &question, names)
}

/// Words that come often among such that come three times.
fn common(filler: usize, draws: &mut Draws) -> Draft {
    const FEWEST: usize = 6;
    const MOST: usize = 30;
    const OTHERS: usize = 3;
    let first = draws.below(WORDS as u64) as usize;
    // A step that shares no divisor with the number of words comes by all of them.
    let of = |index: usize| word((first + index * 40_503) % WORDS);
    let often = (filler / 4).clamp(FEWEST, MOST);
    let mut list: Vec<usize> = (0..COMMON).flat_map(|index| [index].repeat(often)).collect();
    list.extend((COMMON..COMMON + filler).flat_map(|index| [index; OTHERS]));
    draws.shuffle(&mut list);
    let listed = list.iter().enumerate().map(|(at, &index)| format!("{}. {} ", at + 1, of(index)));
    let text: String = listed.collect();
    let question = format!("\nWhich {COMMON} words come most often in the list? They are");
    Draft::list(format!("A list of words.\n{text}{question}"), (0..COMMON).map(of).collect())
}

/// Words by rank: as many of each as the square of its rank divides.
fn frequent(filler: usize, draws: &mut Draws) -> Draft {
    const FEWEST: usize = 60;
    let first = draws.below(WORDS as u64) as usize;
    let of = |index: usize| word((first + index * 40_503) % WORDS);
    let all = FEWEST + filler;
    // The sum of 1 / rank^2 over all ranks is this.
    let zeta = std::f64::consts::PI.powi(2) / 6.0;
    let mut list: Vec<usize> = Vec::with_capacity(all);
    for rank in 1.. {
        let count = (all as f64 / zeta / (rank * rank) as f64) as usize;
        list.extend([rank - 1].repeat(count.max(1).min(all - list.len())));
        if list.len() == all {
            break;
        }
    }
    draws.shuffle(&mut list);
    let text: Vec<String> = list.iter().map(|&index| of(index)).collect();
    let question = format!("\nWhich {FREQUENT} words come most often? They are");
    let answer = (0..FREQUENT).map(of).collect();
    Draft::list(format!("Words.\n{}{question}", text.join(" ")), answer)
}
