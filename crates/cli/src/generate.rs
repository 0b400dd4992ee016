//! `annulus generate`: continues a text.

use std::path::{Path, PathBuf};

use annulus_comm::World;
use annulus_data::{DataError, IGNORED, Sequence, Tokenizer};
use annulus_evaluation::Subject;
use annulus_experiment::{DocumentBounds, Override, Sample};
use annulus_train::{
    Exit, GenerateRequest, Opening, Sampling, Setup, TrainError, check_processes_agree, generate,
    open_data, ranks_here,
};
use clap::Args;
use parking_lot::Mutex;
use serde_json::json;

use crate::Done;
use crate::failure::Failure;
use crate::print;
use crate::processes::{self, JobError};
use crate::subject::subject;
use crate::values::{replacement, tokens};

#[derive(Args, Debug)]
pub(crate) struct Generate {
    /// A run's folder, a `step-N` in it, a Hugging Face folder or `hf://owner/name`, or an experiment
    path: PathBuf,
    /// Keys to replace, as in `mesh.sequence=2`
    #[arg(value_name = "KEY=VALUE", value_parser = replacement_or_prompt)]
    replacements: Vec<Override>,
    /// Prompt
    #[arg(long, required_unless_present = "file")]
    prompt: Option<String>,
    /// File with the prompt
    #[arg(long, value_name = "PATH", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// Number of tokens to generate at most
    #[arg(long, value_parser = tokens, default_value_t = 128)]
    tokens: usize,
    /// Sampling temperature; 0: greedy
    #[arg(long, default_value_t = 0.8, value_parser = at_least_zero, allow_negative_numbers = true)]
    temperature: f64,
    /// Sample from the N most likely tokens
    #[arg(long, value_name = "N", value_parser = tokens)]
    top_k: Option<usize>,
    /// Sample from the most likely tokens with this total probability (nucleus)
    #[arg(long, value_name = "P", default_value_t = 0.95, value_parser = probability, allow_negative_numbers = true)]
    top_p: f64,
    /// Seed of the sampling
    #[arg(long, default_value_t = 0, value_parser = whole, allow_negative_numbers = true)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Generate) -> Done {
    let world = processes::join()?;
    Ok(processes::finish(&world, go_on(arguments, &world)))
}

fn go_on(arguments: &Generate, world: &World) -> Result<u8, JobError> {
    let subject = subject(&arguments.path, &arguments.replacements, false, world)?;
    let (task, text) = processes::shared(world, || task(arguments, &subject, world))?;
    let wanted = format!("{:?}", task.wanted).into_bytes();
    let prompt = task.prompt.iter().flat_map(|id| id.to_le_bytes()).collect();
    check_processes_agree(
        world,
        None,
        None,
        &[("the prompt", prompt), ("what is asked for", wanted)],
    )?;
    if world.process() > 0 {
        task.run(&|_| ())?;
        return Ok(0);
    }
    processes::announce(world);
    task.warn();
    if !arguments.json {
        task.show(&text)?;
        return Ok(0);
    }
    let ids = task.run(&|_| ())?;
    let prompt = &task.prompt;
    let answer = Stream::new(task.tokenizer, prompt).text(&ids).map_err(Failure::from)?;
    let value = json!({ "prompt": text, "prompt_ids": prompt, "ids": ids, "text": answer });
    print::line(&value.to_string())?;
    Ok(0)
}

/// The generation that the arguments ask for, and its prompt as text.
fn task<'a>(
    arguments: &Generate,
    subject: &'a Subject,
    world: &World,
) -> Result<(Task<'a>, String), Failure> {
    // One sequence is generated, however many replicas the training has.
    ranks_here(world, subject.plan.experiment.mesh.sequence)?;
    let text = match &arguments.file {
        Some(path) => read(path)?,
        None => arguments.prompt.clone().unwrap_or_default(),
    };
    let sampling = Sampling {
        temperature: arguments.temperature,
        top_k: arguments.top_k,
        top_p: arguments.top_p,
        seed: arguments.seed,
    };
    let task = Task::new(subject, encoded(subject, &text)?, arguments.tokens, sampling)?;
    Ok((task, text))
}

/// Prints a sample of a run's model, below a line that says so.
pub(crate) fn sample(run: &Path, Sample { prompt, tokens }: &Sample) -> Result<(), JobError> {
    const SAMPLING: Sampling = Sampling { temperature: 0.8, top_k: None, top_p: 0.95, seed: 0 };
    let subject = subject(run, &[], false, &World::alone())?;
    let (ids, shown) = match prompt {
        Some(text) => (encoded(&subject, text)?, text.clone()),
        None => end_of_data(&subject, *tokens)?,
    };
    // What an extended model writes beyond its new length is no sample of what it has learned.
    let room = subject.longest().map(|longest| longest.saturating_sub(ids.len()));
    let tokens = room.filter(|room| *room > 0).map_or(*tokens, |room| room.min(*tokens));
    print::line(&format!("\na sample, {tokens} tokens from ▸ on:\n"))?;
    let task = Task::new(&subject, ids, tokens, SAMPLING)?;
    task.warn();
    task.show(&format!("{shown}▸"))
}

/// A prompt from the held-out data, and its end as text: the last sequence, of packed documents without padding, and of documents that do
/// not see each other the last alone; without its last `tokens` tokens, or half of it where it is shorter than twice that.
fn end_of_data(subject: &Subject, tokens: usize) -> Result<(Vec<u32>, String), Failure> {
    const SHOWN: usize = 240;
    let tokenizer = subject.tokenizer()?;
    let opening = Opening { tokenizer: Some(tokenizer), ..Opening::default() };
    let data = open_data(&subject.plan, opening, &mut |_| {})?;
    let held_out = data.held_out.ok_or_else(|| Failure::internal("nothing is held out"))?;
    let Sequence { inputs: mut ids, targets, documents } =
        held_out.sequence(held_out.sequences.saturating_sub(1))?;
    let room = ids.len().saturating_sub(tokens).max(1);
    let experiment = &subject.plan.experiment;
    if experiment.data.format.is_text() {
        // Of packed documents, what is behind the last token that is learned is padding.
        let last = targets.iter().rposition(|&target| target != IGNORED);
        ids.truncate(last.map_or(1, |last| last + 1));
    }
    if experiment.attention.masking.documents == Some(DocumentBounds::ByData) {
        // A query sees its own document alone: the last one.
        let mut begin = 0;
        for length in documents {
            if begin + length >= ids.len() {
                break;
            }
            begin += length;
        }
        ids.drain(..begin);
    }
    // Of a short document half: there is something left to go on to.
    let kept = ids.len().saturating_sub(tokens).max(ids.len() / 2);
    ids.truncate(kept.clamp(1, room));
    let end = tokenizer.decode(&ids[ids.len().saturating_sub(SHOWN)..])?;
    Ok((ids, format!("…{end}")))
}

/// A prompt as token ids.
fn encoded(subject: &Subject, text: &str) -> Result<Vec<u32>, Failure> {
    Ok(subject.tokenizer()?.prompt(text)?)
}

/// A prompt, and how it is continued.
struct Task<'a> {
    subject: &'a Subject,
    tokenizer: &'a Tokenizer,
    setup: Setup,
    prompt: Vec<u32>,
    wanted: GenerateRequest,
}

impl<'a> Task<'a> {
    fn new(
        subject: &'a Subject,
        prompt: Vec<u32>,
        tokens: usize,
        sampling: Sampling,
    ) -> Result<Task<'a>, Failure> {
        let (tokenizer, length) = (subject.tokenizer()?, prompt.len().max(1));
        let setup = subject.setup_of_prompt(length, length + tokens)?;
        let ends = subject.ends()?;
        Ok(Task {
            subject,
            tokenizer,
            setup,
            prompt,
            wanted: GenerateRequest { tokens, ends, sampling },
        })
    }

    fn run(&self, told: &(dyn Fn(&[u32]) + Sync)) -> Result<Vec<u32>, TrainError> {
        generate(&self.setup, &self.subject.weights, &self.prompt, &self.wanted, told)
    }

    /// Prints the prompt and streams the generated text.
    fn show(&self, text: &str) -> Result<(), JobError> {
        print::piece(text)?;
        let stream = Mutex::new(Stream::new(self.tokenizer, &self.prompt));
        let told = |ids: &[u32]| stream.lock().show(ids);
        let ids = self.run(&told)?;
        Ok(stream.into_inner().finish(&ids)?)
    }

    /// Warns if prompt and generated tokens that are read exceed the length that the model was trained for.
    fn warn(&self) {
        // The last one is drawn, and not read.
        let read = self.prompt.len() + self.wanted.tokens.saturating_sub(1);
        let longest = self.subject.trained_for().unwrap_or(read);
        if read > longest {
            print::warn(format!(
                "prompt and generated text are {read} tokens to read; the model was trained on at most {longest}"
            ));
        }
    }
}

/// Prints text as its tokens are generated. A token may be part of a character, or change how the token before it is decoded.
struct Stream<'a> {
    tokenizer: &'a Tokenizer,
    /// The end of the prompt: a decoder may drop the space before the first token that it is given.
    context: &'a [u32],
    /// How many tokens have been printed, and the first of them that is decoded again together with the next ones.
    written: usize,
    again: usize,
    /// The first error, after which nothing is printed.
    failed: Option<Failure>,
}

impl<'a> Stream<'a> {
    fn new(tokenizer: &'a Tokenizer, prompt: &'a [u32]) -> Stream<'a> {
        const CONTEXT: usize = 8;
        let context = &prompt[prompt.len().saturating_sub(CONTEXT)..];
        Stream { tokenizer, context, written: 0, again: 0, failed: None }
    }

    fn show(&mut self, ids: &[u32]) {
        let shown = self.next(ids).map_err(Failure::from).and_then(|text| match text {
            // An incomplete character is not printed yet.
            Some(text) if !text.ends_with(char::REPLACEMENT_CHARACTER) => {
                (self.again, self.written) = (self.written, ids.len());
                print::piece(&text)
            }
            _ => Ok(()),
        });
        self.failed = self.failed.take().or(shown.err());
    }

    /// The text that tokens add which have not been printed yet.
    fn next(&self, ids: &[u32]) -> Result<Option<String>, DataError> {
        if self.written == 0 {
            return self.text(ids).map(Some);
        }
        let context = if self.again == 0 { self.context } else { &[] };
        let [before, now] = [self.written, ids.len()]
            .map(|end| self.tokenizer.decode(&[context, &ids[self.again..end]].concat()));
        Ok(now?.strip_prefix(before?.as_str()).map(str::to_owned))
    }

    /// The text of all tokens behind the prompt.
    fn text(&self, ids: &[u32]) -> Result<String, DataError> {
        let before = self.tokenizer.decode(self.context)?;
        let now = self.tokenizer.decode(&[self.context, ids].concat())?;
        // A prompt may end within a character.
        match now.strip_prefix(before.as_str()) {
            Some(text) => Ok(text.to_owned()),
            None => self.tokenizer.decode(ids),
        }
    }

    fn finish(self, ids: &[u32]) -> Result<(), Failure> {
        let rest = self.next(ids)?;
        match self.failed {
            Some(failed) => Err(failed),
            None => print::line(&rest.unwrap_or_default()),
        }
    }
}

/// The largest prompt file, in bytes.
const LARGEST: u64 = 1 << 28;

/// The text of a file, without a byte-order mark, as data are read.
fn read(path: &Path) -> Result<String, Failure> {
    let text = annulus_files::read_to_string(path, LARGEST).map_err(|error| {
        Failure::new(Exit::Usage, format!("cannot read `{}`: {error}", path.display()), None)
    })?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

fn replacement_or_prompt(word: &str) -> Result<Override, String> {
    let hint = "the text to continue is `--prompt TEXT`";
    replacement(word).map_err(|wrong| format!("{wrong}; {hint}"))
}

fn whole(word: &str) -> Result<u64, String> {
    word.parse().map_err(|_| format!("expected a whole number from 0 to {}", u64::MAX))
}

fn at_least_zero(word: &str) -> Result<f64, String> {
    let number = word.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "expected a number of at least 0".to_owned())
}

fn probability(word: &str) -> Result<f64, String> {
    let number = word.parse().ok().filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}
