//! A question behind a long text, and its answer.

use crate::{IGNORED, Sequence};

/// A question and its answer, as ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The text with the question at its end.
    pub prompt: Vec<u32>,
    /// The ids that a right answer begins with.
    pub answer: Vec<u32>,
    /// Texts that an answer must contain, in any order and with any words between; empty: the answer itself.
    pub parts: Vec<String>,
}

impl Question {
    /// How many inputs a sequence needs in which every token of the answer is a target.
    pub fn tokens(&self) -> usize {
        self.prompt.len() + self.answer.len() - 1
    }

    /// Prompt and answer as a sequence of `tokens` inputs, filled behind the answer, where no token of it sees.
    ///
    /// # Panics
    /// When they are longer.
    pub fn sequence(&self, tokens: usize) -> Sequence {
        assert!(self.tokens() <= tokens, "a question is never cut");
        let mut inputs = self.prompt.clone();
        inputs.extend(&self.answer[..self.answer.len() - 1]);
        let mut targets = vec![IGNORED; tokens];
        for (index, &id) in self.answer.iter().enumerate() {
            targets[self.prompt.len() - 1 + index] = i64::from(id);
        }
        inputs.resize(tokens, self.prompt[0]);
        Sequence { inputs, targets, documents: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_of_an_answer_is_a_target_and_nothing_else_is() {
        let question = Question { prompt: vec![5, 6, 7], answer: vec![8, 9], parts: Vec::new() };
        assert_eq!(question.tokens(), 4);
        let sequence = question.sequence(6);
        assert_eq!(sequence.inputs, [5, 6, 7, 8, 5, 5]);
        assert_eq!(sequence.targets, [-100, -100, 8, 9, -100, -100]);
    }
}
