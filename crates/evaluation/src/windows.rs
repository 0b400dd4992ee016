//! Windows of texts with the same ends at every length.

use std::path::PathBuf;

use annulus_data::{IGNORED, Sequence, apportion};
use annulus_experiment::EvaluationWindows;
use annulus_train::{Result, TrainError};

use crate::texts::{Text, reading};
use crate::{Progress, Subject};

/// The number of windows where the file does not say.
const MOST_WINDOWS: usize = 32;
/// The fewest, which have a standard error.
const FEWEST_WINDOWS: usize = 2;

/// Windows over texts: the last `targets` tokens of each are in no other.
#[derive(Debug)]
pub(crate) struct Windows {
    texts: Vec<Spread>,
    pub(crate) targets: usize,
}

/// The windows of a text, spread evenly over it.
#[derive(Debug)]
struct Spread {
    text: Text,
    /// The end of each window: one past its last target.
    ends: Vec<u64>,
}

impl Windows {
    /// Opens the windows that the experiment asks for. Several texts share them as they share what is held out.
    pub(crate) fn open(subject: &Subject, progress: Progress<'_>) -> Result<Windows> {
        let experiment = &subject.plan.experiment;
        let texts = Text::open_all(subject, &mut reading(progress))?;
        let targets = experiment.evaluated_targets();
        let longest = *experiment.evaluated_lengths().last().unwrap_or(&experiment.data.tokens);
        let is_held_out = experiment.evaluation.path.is_none();
        let asked = Asked { targets, longest, windows: experiment.evaluation.windows, is_held_out };
        let counts = asked.counts(&texts);
        let is_one = texts.len() == 1;
        let spread = |(text, count): (Text, usize)| asked.spread(text, count, is_one);
        let texts = texts.into_iter().zip(counts).map(spread).collect::<Result<_>>()?;
        Ok(Windows { texts, targets })
    }

    /// The fingerprints of all texts, one after the other.
    pub(crate) fn fingerprints(&self) -> Vec<u8> {
        self.texts.iter().flat_map(|spread| spread.text.cache.fingerprint().bytes()).collect()
    }

    /// The number of windows, over all texts.
    pub(crate) fn count(&self) -> usize {
        self.texts.iter().map(|spread| spread.ends.len()).sum()
    }

    /// The texts that have windows, each with their number, in the order of windows.
    pub(crate) fn by_text(&self) -> impl Iterator<Item = (&PathBuf, usize)> {
        let texts = self.texts.iter().map(|spread| (&spread.text.path, spread.ends.len()));
        texts.filter(|(_, windows)| *windows > 0)
    }

    /// The text of window `index`, and the window's end there.
    fn place(&self, index: usize) -> (&Text, u64) {
        let mut within = index;
        for Spread { text, ends } in &self.texts {
            match ends.get(within) {
                Some(end) => return (text, *end),
                None => within -= ends.len(),
            }
        }
        unreachable!("window {index} of {}", self.count())
    }

    /// Window `index` as a sequence of `tokens` inputs, with its documents; targets are all following tokens, or only the last ones.
    ///
    /// # Errors
    /// When the token cache cannot be read, or the window has no target.
    pub(crate) fn sequence(&self, index: usize, tokens: usize, all: bool) -> Result<Sequence> {
        let mut ids = vec![0; tokens + 1];
        let (text, end) = self.place(index);
        let (cache, end) = (&text.cache, end - 1);
        let start = end - tokens as u64;
        cache.read(start, &mut ids)?;
        let mut sequence = Sequence::shifted(&ids);
        sequence.documents = cache.documents_in(start..end);
        let first = tokens - self.targets;
        if !all {
            sequence.targets[..first].fill(IGNORED);
        }
        if text.is_packed {
            let mut begins = 0;
            for length in cache.documents_in(start..end + 1) {
                begins += length;
                if begins <= tokens {
                    sequence.targets[begins - 1] = IGNORED;
                }
            }
        }
        if sequence.targets[first..].iter().all(|&target| target == IGNORED) {
            return Err(TrainError::configuration(
                format!(
                    "the last {} tokens of window {} all begin documents",
                    self.targets,
                    index + 1
                ),
                "raise `evaluation.targets`, or give another text in `evaluation.path`",
            ));
        }
        Ok(sequence)
    }
}

/// The windows that are asked for.
struct Asked {
    targets: usize,
    longest: usize,
    windows: Option<EvaluationWindows>,
    /// Whether texts were trained on but for what was held out.
    is_held_out: bool,
}

impl Asked {
    /// The end of a text's first window. There is one input more than targets: the one before the first target.
    fn first_end(&self, text: &Text) -> u64 {
        (text.first + self.targets as u64).max(self.longest as u64 + 1)
    }

    /// The number of windows of every text: as many altogether as are asked for, or as there are targets for, up to 32.
    fn counts(&self, texts: &[Text]) -> Vec<usize> {
        let weights: Vec<f64> = texts.iter().map(|text| text.share).collect();
        let shared = |count: usize| apportion(count as u64, &weights);
        let most = |text: &Text| {
            let beyond = text.cache.tokens().checked_sub(self.first_end(text));
            beyond.map_or(0, |tokens| tokens / self.targets as u64 + 1)
        };
        // A text that has no room for its least is an error, not left out.
        let room: Vec<u64> = texts.iter().map(|text| most(text).max(1)).collect();
        let wanted = match self.windows {
            Some(EvaluationWindows::All) => {
                return room.into_iter().map(|windows| windows as usize).collect();
            }
            Some(EvaluationWindows::Count(windows)) => Some(windows),
            None => None,
        };
        let has_room =
            |count: &usize| shared(*count).iter().zip(&room).all(|(own, room)| own <= room);
        let largest = || (FEWEST_WINDOWS..=MOST_WINDOWS).rev().find(has_room);
        let count = wanted.or_else(largest).unwrap_or(FEWEST_WINDOWS);
        let least = u64::from(wanted.is_none());
        shared(count).into_iter().map(|own| own.max(least) as usize).collect()
    }

    /// `count` windows over `text`; errors name it unless it is the only one.
    fn spread(&self, text: Text, count: usize, is_one: bool) -> Result<Spread> {
        let (first, last) = (self.first_end(&text), text.cache.tokens());
        let needed = first + (count.saturating_sub(1) * self.targets) as u64;
        if count > 0 && last < needed {
            // Context before the targets may come from the text that is trained on.
            let of_lengths = !self.is_held_out || first > text.first + self.targets as u64;
            let start = if of_lengths { 0 } else { text.first };
            let subject =
                if is_one { String::new() } else { format!("`{}`: ", text.path.display()) };
            return Err(self.too_short(
                count,
                [last.saturating_sub(start), needed - start],
                of_lengths,
                &subject,
            ));
        }
        let steps = count.saturating_sub(1).max(1) as u64;
        let end = |index| match self.windows {
            Some(EvaluationWindows::All) => first + index * self.targets as u64,
            _ => first + (last - first) * index / steps,
        };
        Ok(Spread { ends: (0..count as u64).map(end).collect(), text })
    }

    /// The error of a text that `has` fewer tokens than `count` windows `needs`: the whole text, or its held-out part.
    fn too_short(
        &self,
        count: usize,
        [has, needs]: [u64; 2],
        of_lengths: bool,
        text: &str,
    ) -> TrainError {
        let Asked { targets, longest, .. } = self;
        let others = (count.saturating_sub(1) * targets) as u64;
        let windows = if count == 1 { "a window".to_owned() } else { format!("{count} windows") };
        if !of_lengths {
            let held_out = if has == 1 { "token held out is" } else { "tokens held out are" };
            let need = if count == 1 { "needs" } else { "need" };
            return TrainError::configuration(
                format!(
                    "{text}{has} {held_out} too few: {windows} of {targets} targets {need} {needs}"
                ),
                "lower `evaluation.windows` or `evaluation.targets`, or give another text in \
                     `evaluation.path`",
            );
        }
        let most = has.saturating_sub(others + 1);
        let lower = if most >= *targets as u64 {
            format!("lower `evaluation.lengths` to at most {most}, or give a longer text")
        } else {
            "lower `evaluation.windows` or `evaluation.targets`, or give a longer text".to_owned()
        };
        TrainError::configuration(
            format!(
                "{text}the text has {has} tokens, too few for {windows} of {longest}: {needs} are \
                 needed, {longest} and a last target for the first, {targets} for each further one"
            ),
            format!("{lower} in `evaluation.path`"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_and_one_window_are_told_as_one() {
        let asked = Asked { targets: 24, longest: 48, windows: None, is_held_out: true };
        let said = |count, has| asked.too_short(count, [has, 24], false, "").to_string();
        assert_eq!(said(1, 1), "1 token held out is too few: a window of 24 targets needs 24");
        let both = "2 tokens held out are too few: 9 windows of 24 targets need 24";
        assert_eq!(said(9, 2), both);
    }
}
