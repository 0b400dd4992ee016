//! The experiment's file: all top-level keys in order, read with all mistakes reported together, and written with every default.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use annulus_yaml::Absent::{Is, Means, Required, RequiredWithout};
use annulus_yaml::Kind::{Count, Each, Form, OneOf, Path as Folder, Section, Truth, Word};
use annulus_yaml::{
    Document, Lines, Override, Path as Key, Places, Problem, Problems, Section as _, Values, list,
    read_file, section,
};

use crate::attention::AttentionKeys;
use crate::data::DataKeys;
use crate::device::{DEVICE, NAME};
use crate::free::{ROUNDING, is_free};
use crate::lora::LoraKeys;
use crate::model::{MODEL, ModelKeys};
use crate::schedule::ScheduleKeys;
use crate::stages::{PhaseKeys, SECTION as STAGES};
use crate::sweep::{SECTION as SWEEP, SweepKeys, not_one_run};
use crate::{
    Bound, Device, Evaluation, Every, Experiment, Extension, Memory, Mesh, Optimizer, Parallel,
    Reproducible, Sample, Trace, rules,
};

section! {
    /// An experiment's file, as written.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Written {
        name: String = Form(&NAME), Required, "what the run is called";
        seed: u64 = Count(0, u64::MAX), Is("0"), "the seed of everything random";
        reproducible: Reproducible = Word(Reproducible::WORDS), Is("layout"),
            "which runs are bit-identical; layout: runs with the same ranks and the same split; strict: runs with any number of \
             ranks and processes and any split (on a CPU a step takes 1.1 to 1.2 times as long at 8k tokens, up to twice with \
             short sequences; on a GPU attention uses no tensor cores; gradients take three times the memory)";
        device: Device = Form(&DEVICE), Is("auto"),
            "what computes; cuda: the largest number of visible GPUs that the ranks of the process can share evenly, \
             neighbouring ranks together; with several processes on a host, one GPU each; cuda:N: that GPU, for all ranks; \
             cuda:0-3 or cuda:0,2: those GPUs, in that order; auto: as cuda if there is a GPU, else the CPU";
        model: ModelKeys = OneOf(&MODEL), Required, "a Hugging Face folder, or the keys of a config.json";
        extend: Option<Extension> = Section(Extension::KEYS), Means("the model as it is"),
            "longer sequences than the model was trained for";
        lora: Option<LoraKeys> = Section(LoraKeys::KEYS), Means("everything is trained"),
            "LoRA adapters beside frozen weights";
        data: DataKeys = Section(DataKeys::KEYS), Required, "the training data, and how much of it per step";
        mesh: Mesh = Section(Mesh::KEYS), Means("one rank"),
            "ranks: data-parallel replicas × context-parallel ranks of a sequence × tensor-parallel ranks";
        attention: AttentionKeys = Section(AttentionKeys::KEYS), Means("causal attention on one rank"),
            "the mask, and how attention is split over ranks";
        parallel: Parallel = Section(Parallel::KEYS), Means("as below"),
            "what processes hold of the model's state; changes no result";
        memory: Memory = Section(Memory::KEYS), Means("recomputation and chunks: the fastest that fit; the others as below"),
            "recomputation, micro-batches and chunks: memory against time; `micro_batch`, `loss_chunk` and `mlp_chunk` change the rounding, except with `reproducible: strict`";
        optimizer: Optimizer = Section(Optimizer::KEYS), Required, "AdamW on f32 masters";
        schedule: ScheduleKeys = Section(ScheduleKeys::KEYS), RequiredWithout(STAGES),
            "steps, and the learning rate over them";
        stages: Vec<(String, PhaseKeys)> = Each(PhaseKeys::KEYS), Means("one phase"),
            "phases with sequences of different lengths, under names of your own; each continues the one before";
        every: Every = Section(Every::KEYS), Means("log each step, evaluate and save at the end"),
            "steps between log lines, evaluations and checkpoints";
        evaluation: Evaluation = Section(Evaluation::KEYS), Means("as below"),
            "what `annulus evaluate` measures; does not affect training";
        trace: Trace = Section(Trace::KEYS), Means("nothing is recorded"),
            "steps that are recorded as traces of all ranks";
        sample: Option<Sample> = Section(Sample::KEYS), Means("nothing is written"),
            "a text that `train` generates at its end; does not affect training";
        keep: usize = Count(1, 1 << 20), Is("2"), "how many checkpoints are kept";
        keep_best: bool = Truth, Is("false"),
            "whether the checkpoint with the lowest validation loss is kept, too; only checkpoints of steps that `every.evaluate` evaluates are compared";
        background_saves: bool = Truth, Is("false"),
            "write checkpoints while training continues: a step waits only for a copy of weights, masters and moments in memory. With sharded state each rank copies and writes its shard; if not all hosts see `output`, training waits";
        output: Option<PathBuf> = Folder, Means("runs/NAME"), "the folder of the run";
        expect: BTreeMap<String, Bound> = Each(Bound::KEYS), Means("nothing is asserted"),
            "bounds on metrics, by tag, that `train --check` asserts";
        sweep: Option<SweepKeys> = Section(SweepKeys::KEYS), Means("the file is one run"),
            "many runs of this file, which `annulus sweep` makes: combinations of values for its other keys, each in a folder of its own in `output`";
    }
}

/// Reads and checks the file at `path` with `overrides`.
///
/// # Errors
/// Every mistake in the file.
pub fn load(path: &Path, overrides: &[Override]) -> Result<Experiment, Problems> {
    parse(&path.display().to_string(), &read_experiment(path)?, overrides)
}

/// The text of the experiment's file at `path`. A pipe, as the shell's `<(…)` makes one, can be read only once.
///
/// # Errors
/// A file that cannot be read, is too large, or is not text.
pub fn read_experiment(path: &Path) -> Result<String, Problems> {
    if path.is_dir() {
        let message = format!("`{}` is a folder, not an experiment", path.display());
        return Err(Problem::new(message).hint(of_folder(path)).into());
    }
    let text = read_file(path)?;
    let is_config = path.file_name().is_some_and(|name| name == "config.json");
    if is_config && text.contains("\"model_type\"") {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).display();
        let message = format!("`{}` is a model's, not an experiment", path.display());
        let hint = format!("give the model's folder, `{folder}`, or set it as `model.path`");
        return Err(Problem::new(message).hint(hint).into());
    }
    Ok(text)
}

/// What to name instead of a folder.
fn of_folder(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let run = path.parent().filter(|run| run.join("run.lock").is_file());
    match run.zip(name.filter(|name| name.starts_with("step-"))) {
        Some((run, _)) => format!("its run is `{}`", run.display()),
        None if path.join("config.json").is_file() => {
            "set it as `model.path` of an experiment".to_owned()
        }
        None => "give an experiment (`.yaml`), or a run's folder".to_owned(),
    }
}

/// Reads and checks an experiment from `text` with `overrides`; errors call the file `name`, and show no place in the text if that is empty.
///
/// # Errors
/// As [`load`].
pub fn parse(name: &str, text: &str, overrides: &[Override]) -> Result<Experiment, Problems> {
    let mut document = Document::parse(name, text, overrides)?;
    if let Some(entry) = document.take(SWEEP) {
        document.report.at(entry.key_span, || not_one_run(name));
        // Other keys may be valid only with the sweep's values.
        return Err(document.report.finish());
    }
    read(document)
}

/// An experiment from its file's tree, which has no sweep.
pub(crate) fn read(mut document: Document) -> Result<Experiment, Problems> {
    let values = document.values(Written::KEYS, "an experiment");
    let places = document.places(&values);
    let mut report = document.report;
    report.extend(contradictions(&values, &places));
    let experiment = Written::read(&values, "").and_then(|written| written.meant(places));
    report.extend(experiment.iter().flat_map(rules::broken));
    match experiment {
        Some(experiment) if report.is_empty() => Ok(experiment),
        _ => Err(report.finish()),
    }
}

/// The explanation of a key of the file; else the names nearest to it.
///
/// # Errors
/// When there is no such key.
pub fn explain(name: &str) -> Result<String, Vec<String>> {
    annulus_yaml::explain(Written::KEYS, name)
}

/// The keys of the file that take `value` as a word, such as `zero3`; `None`: none does.
pub fn explain_value(value: &str) -> Option<String> {
    annulus_yaml::explain_value(Written::KEYS, value)
}

/// All keys of the file as a Markdown page.
pub fn page() -> String {
    annulus_yaml::page(Written::KEYS)
}

/// The JSON Schema of the file, for editors.
pub fn schema() -> serde_json::Value {
    annulus_yaml::schema("An experiment of Annulus: one file, one run", Written::KEYS)
}

/// Contradictions between words, in every section that can be read.
fn contradictions(values: &Values, places: &Places) -> Vec<Problem> {
    let model = ModelKeys::read(values, "model");
    let model = model.and_then(|model| model.meant(places).err()).unwrap_or_default();
    let attention = AttentionKeys::read(values, "attention");
    model.into_iter().chain(attention.iter().flat_map(|keys| keys.contradictions(places))).collect()
}

impl Written {
    /// The experiment that the file means; `None`: it contradicts itself, which is reported.
    fn meant(self, places: Places) -> Option<Experiment> {
        let stages: Vec<_> =
            self.stages.into_iter().map(|(name, stage)| stage.meant(name)).collect();
        Some(Experiment {
            seed: self.seed,
            reproducible: self.reproducible,
            device: self.device,
            model: self.model.meant(&places).ok()?,
            extend: self.extend,
            lora: self.lora.map(LoraKeys::meant),
            data: self.data.meant(&stages)?,
            mesh: self.mesh,
            attention: self.attention.meant(),
            parallel: self.parallel,
            memory: self.memory,
            host: crate::Host::default(),
            optimizer: self.optimizer,
            schedule: self.schedule.meant(&stages)?,
            stages,
            phase_of: None,
            every: self.every,
            evaluation: self.evaluation,
            trace: self.trace,
            sample: self.sample,
            keep: self.keep,
            keep_best: self.keep_best,
            background_saves: self.background_saves,
            output: self.output.unwrap_or_else(|| PathBuf::from("runs").join(&self.name)),
            expect: self.expect,
            name: self.name,
            places,
        })
    }
}

impl Experiment {
    /// The file that means this experiment, with every default written out.
    pub fn file(&self) -> Written {
        let has_phases = !self.stages.is_empty();
        let stages = self.stages.iter().enumerate();
        Written {
            name: self.name.clone(),
            seed: self.seed,
            reproducible: self.reproducible,
            device: self.device.clone(),
            model: self.model.keys(),
            extend: self.extend.clone(),
            lora: self.lora.as_ref().map(LoraKeys::of),
            data: self.data.keys(has_phases),
            mesh: self.mesh.clone(),
            attention: self.attention.keys(),
            parallel: self.parallel,
            memory: self.memory.clone(),
            optimizer: self.optimizer.clone(),
            schedule: self.schedule.keys(has_phases),
            stages: stages.map(|(number, stage)| stage.keys(number == 0)).collect(),
            every: self.every,
            evaluation: self.evaluation.clone(),
            trace: self.trace.clone(),
            sample: self.sample.clone(),
            keep: self.keep,
            keep_best: self.keep_best,
            background_saves: self.background_saves,
            output: Some(self.output.clone()),
            expect: self.expect.clone(),
            sweep: None,
        }
    }

    /// The text of [`Experiment::file`], which reads back as the same experiment.
    pub fn to_yaml(&self) -> String {
        self.lines().to_yaml()
    }

    /// The keys and values that a resumed run must share with the original: all but [`what_may_differ`](crate::what_may_differ).
    pub fn identity(&self) -> Vec<(String, String)> {
        let lines = self.lines();
        let lines = lines.iter().map(|(key, value)| (key, value.to_owned()));
        let order = list(self.stages.iter().map(|stage| stage.name.clone()));
        let order = Some((String::from(STAGES), order)).filter(|_| !self.stages.is_empty());
        order.into_iter().chain(lines.filter(|(key, _)| !is_free(key))).collect()
    }

    /// The keys and values that a resumed run may change and that change the rounding of its steps.
    pub fn rounding(&self) -> BTreeMap<String, String> {
        if self.reproducible == Reproducible::Strict {
            return BTreeMap::new();
        }
        let rounds =
            |key: &str| ROUNDING.contains(&key) || key.starts_with("attention.") && is_free(key);
        let lines = self.lines();
        let lines = lines.iter().filter(|(key, _)| rounds(key));
        lines.map(|(key, value)| (key, value.to_owned())).collect()
    }

    /// The keys and values that say how a step is split over ranks.
    pub fn split_lines(&self) -> Vec<(String, String)> {
        let says = |key: &str| key.starts_with("mesh.") || key.starts_with("attention.");
        let lines = self.lines();
        let lines = lines.iter().filter(|(key, _)| says(key));
        lines.map(|(key, value)| (key, value.to_owned())).collect()
    }

    fn lines(&self) -> Lines {
        let mut lines = Lines::default();
        self.file().write(&Key::default(), &mut lines);
        lines
    }
}

/// A key whose values differ between experiments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Varying {
    /// The key's path.
    pub key: String,
    /// The key's value in each experiment's resolved file; `None`: the key is absent.
    pub values: Vec<Option<String>>,
    /// The default that stands for an absent key, if it has one.
    pub default: Option<&'static str>,
}

/// The keys that differ between several experiments, section by section; all but `output`, which always differs.
pub fn varying(experiments: &[Experiment]) -> Vec<Varying> {
    let lines: Vec<Lines> = experiments.iter().map(Experiment::lines).collect();
    let mut keys: Vec<String> = Vec::new();
    for (key, _) in lines.iter().flat_map(Lines::iter) {
        if key != "output" && !keys.contains(&key) {
            keys.push(key);
        }
    }
    // Keys that only a later experiment has stand with their section.
    let section = |key: &str| key.split('.').next().map(str::to_owned);
    let order: Vec<_> = keys.iter().map(|key| section(key)).collect();
    keys.sort_by_key(|key| order.iter().position(|first| *first == section(key)));
    let found = |lines: &Lines, key: &str| {
        lines.iter().find(|(other, _)| other == key).map(|(_, value)| value.to_owned())
    };
    let varies = |key: String| {
        let values: Vec<_> = lines.iter().map(|lines| found(lines, &key)).collect();
        let default = match annulus_yaml::absent(Written::KEYS, &key) {
            Some(Is(default)) => Some(default),
            _ => None,
        };
        let differ = values.windows(2).any(|pair| pair[0] != pair[1]);
        differ.then_some(Varying { key, values, default })
    };
    keys.into_iter().filter_map(varies).collect()
}
