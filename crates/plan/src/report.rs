//! A plan as text for people, and as JSON for programs.

use annulus_architecture::{Frequencies, Scaling};
use annulus_experiment::{Order, route_word};
use annulus_memory::ByClass;
use annulus_sequence::{Positions, draw_layers, draw_sharded};
use annulus_text::{TERMINAL_WIDTH, blocks, count, size, wrapped};
use serde::{Serialize, Serializer};

use crate::{LayerGroup, Plan, RankPlan, StateSharding, label};

/// The column at which a line's text begins, after its first word.
const INDENT: usize = 8;

impl Plan {
    /// The plan as one line of JSON: ranks with their positions, pairs, bytes and peak memory, and the frequencies of the rotary embedding.
    pub fn to_json(&self) -> String {
        let Frequencies { inverse, factor } = self.shape.frequencies(self.experiment.data.tokens);
        let inv_freq = inverse.into_iter().map(f64::from).collect();
        let view = View {
            ranks: self.ranks.iter().map(Share::from).collect(),
            layers: (self.groups.len() > 1).then(|| self.layers()),
            rope: Rope { inv_freq, attention_factor: factor },
            choice: self.choice.as_ref().map(|chosen| &chosen.json),
        };
        serde_json::to_string(&view).expect("numbers and lists of them are always JSON")
    }

    /// The plan as text: mesh, positions, balance, bytes per step and peak memory per rank, and what `strategy: auto` chose from.
    pub fn to_text(&self) -> String {
        let chosen = self.choice.as_ref().map(|chosen| chosen.whole.clone());
        let (summary, balance) = (wrapped(&self.summary(), INDENT), self.balance());
        let balance = wrapped(&balance, INDENT);
        let parts = [summary, self.layout(), balance, self.bytes(), self.memory(), self.machine()];
        let warnings = self.warnings.iter().map(|warning| format!("warning {warning}"));
        let warnings = warnings.map(|warning| wrapped(&warning, INDENT));
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        let parts: Vec<String> = parts.chain(warnings).chain(chosen).collect();
        parts.iter().map(|part| part.trim_end()).collect::<Vec<_>>().join("\n\n") + "\n"
    }

    /// What differs between layer groups, for the JSON.
    fn layers(&self) -> Vec<Layers<'_>> {
        let of_group = |(number, group)| {
            let LayerGroup { layers, strategy, route, slowest_pairs, .. }: &LayerGroup = group;
            Layers {
                numbers: layers,
                strategy: label(*strategy),
                backward: route_word(route.how),
                slowest_pairs: *slowest_pairs,
                pairs: self.ranks.iter().map(|rank| rank.pairs[number]).collect(),
            }
        };
        self.groups.iter().enumerate().map(of_group).collect()
    }

    /// How the rotary embedding is rescaled, in words; `None`: as the model has it.
    pub fn extension(&self) -> Option<String> {
        let extension = self.experiment.extend.as_ref()?;
        let (tokens, way) = (extension.tokens, extension.rope.word());
        let from = self.shape.rope.original().map(|original| self.stretched_from(tokens, original));
        Some(format!("{way} to {tokens} tokens{}", from.unwrap_or_default()))
    }

    /// What a stretch to `tokens` starts from: the `original` length, or that of a model which was stretched before.
    fn stretched_from(&self, tokens: usize, original: usize) -> String {
        let times = |length: usize| (tokens as f64 / length as f64 * 100.0).round() / 100.0;
        let before = &self.model.rope.scaling;
        let (was, is_kept) = (before.word(), *before == self.shape.rope.scaling);
        match self.model.max_position_embeddings {
            Some(longest) if *before != Scaling::Default && longest != original => {
                if is_kept {
                    let factor = times(longest);
                    return format!(
                        ", {factor} times the {longest} of the model, whose {was} stays"
                    );
                }
                let factor = times(original);
                format!(
                    ", {factor} times the {original} before any scaling; the model has {longest}, and its {was} is replaced"
                )
            }
            _ => format!(", {} times the {original} that it was trained for", times(original)),
        }
    }

    /// What is offloaded, and where to, in words.
    fn offload_text(&self) -> String {
        let place = self.experiment.offload_place();
        let to = match place.folder(self.experiment.is_for_gpus()) {
            Some(folder) => format!("`{}`", folder.display()),
            None => "page-locked memory of the host".to_owned(),
        };
        let line = |(what, bytes): (&str, u64)| {
            format!("\noffload {what}, at most {} of a rank, to {to}", size(bytes))
        };
        let both = [("activations", self.offloaded()), ("moments", self.offloaded_moments())];
        both.into_iter().filter(|(_, bytes)| *bytes > 0).map(line).collect()
    }

    fn summary(&self) -> String {
        let (experiment, shape) = (&self.experiment, &self.shape);
        let (data, mesh) = (&experiment.data, &experiment.mesh);
        format!(
            "{name}\n\
             mesh    {world} = {replicas} of {parts} per sequence{order}{split}\n\
             step    {batch} of {tokens} tokens: {micro_batches} of {micro} per rank\n\
             {devices}memory  {settings}, {pieces} of the feed-forward and {logits} of logits at once{offload}\n\
             model   {layers} of {hidden}, {heads} over {groups} of {width}, \
             vocabulary {vocabulary}: {elements} parameters, {dtype}{lora}{longer}",
            name = experiment.name,
            world = count(self.world(), "rank"),
            replicas = count(mesh.data, "replica"),
            parts = self.places_text(),
            order = self.order_text(),
            split = self.split_text(),
            batch = count(data.batch, "sequence"),
            tokens = data.tokens,
            micro_batches = count(self.micro_batches, "micro-batch"),
            micro = count(self.micro_batch, "sequence"),
            devices = self.devices_text(),
            offload = self.offload_text(),
            settings = self.settings(),
            pieces = count(self.memory.mlp_chunk, "row"),
            logits = count(self.memory.loss_chunk, "row"),
            layers = count(shape.num_hidden_layers, "layer"),
            hidden = shape.hidden_size,
            heads = count(shape.num_attention_heads, "head"),
            groups = count(shape.num_key_value_heads, "KV head"),
            width = shape.head_dim,
            vocabulary = self.vocabulary(),
            elements = shape.elements(),
            dtype = experiment.model.dtype.word(),
            lora = self.lora_text(),
            longer = self.extension().map_or_else(String::new, |how| format!("\nextend  {how}")),
        )
    }

    /// Which ranks compute on which GPU, where this process is the only one.
    fn devices_text(&self) -> String {
        let gpus = self.gpus();
        if gpus.is_empty() { String::new() } else { format!("device  {}\n", gpus.join(", ")) }
    }

    /// How the state is sharded, and what backward recomputes.
    pub(crate) fn settings(&self) -> String {
        format!("state {}, recompute {}", self.state_text(), self.memory.recompute.word())
    }

    /// How processes shard the state, and along which axes others hold the same.
    fn state_text(&self) -> String {
        let StateSharding { state, holders, mirrors, .. } = self.sharding();
        let along = self.experiment.parallel.state_axes.word();
        let along =
            if holders > 1 && mirrors > 1 { format!(" along {along}") } else { String::new() };
        format!("{}{along}", state.word())
    }

    /// How many ranks share a sequence, and how positions are sharded.
    fn places_text(&self) -> String {
        let mesh = &self.experiment.mesh;
        let sequence = count(mesh.sequence, "rank");
        match mesh.tensor {
            1 => sequence,
            tensor => format!("{sequence} by {tensor} tensor-parallel ones"),
        }
    }

    /// Which ranks are neighbours, where those of a sequence are not.
    fn order_text(&self) -> &'static str {
        let mesh = &self.experiment.mesh;
        let apart = mesh.order == Order::DataFirst && mesh.data > 1 && mesh.sequence > 1;
        if apart { ", `mesh.order: data_first`" } else { "" }
    }

    /// What is trained, where that is not every parameter.
    fn lora_text(&self) -> String {
        let Some(lora) = &self.experiment.lora else { return String::new() };
        let targets = lora.targets.iter().map(|target| target.word());
        let trained: Vec<&str> = targets.chain(lora.train.iter().map(|what| what.word())).collect();
        format!(
            "\nlora    rank {}, alpha {}: {} parameters are trained, of {}",
            lora.rank,
            lora.alpha,
            self.counts_of(&self.shape).trained,
            trained.join(", ")
        )
    }

    /// How every layer group's attention is split, and its backward route.
    fn split_text(&self) -> String {
        let several = self.groups.len() > 1;
        let of_group = |group: &LayerGroup| {
            let (strategy, back) = (label(group.strategy), group.route.to_text());
            let layers =
                if several { format!("\nsplit   {}: ", group.title()) } else { ", ".into() };
            format!("{layers}strategy {strategy}\nback    {back}")
        };
        self.groups.iter().map(of_group).collect()
    }

    fn layout(&self) -> String {
        let shards: Vec<Positions> =
            self.of_sequence().map(|rank| rank.positions.clone()).collect();
        match self.groups.as_slice() {
            [only] => draw_sharded(self.experiment.layout(), &only.mask, &shards),
            groups => {
                let seen = |group: &LayerGroup| (group.title(), group.mask.clone());
                let seen: Vec<_> = groups.iter().map(seen).collect();
                draw_layers(self.experiment.layout(), &seen, &shards)
            }
        }
    }

    /// How much more than an even share the slowest ranks compute.
    fn balance(&self) -> String {
        let sequence = self.of_sequence();
        let per_sequence = (self.micro_batch * self.micro_batches) as f64;
        let of_group = |(number, group): (usize, &LayerGroup)| {
            let pairs = sequence.clone().map(|rank| rank.pairs[number] as f64 / per_sequence);
            let even = pairs.sum::<f64>() / sequence.len() as f64;
            let slowest = group.slowest_pairs;
            let several = self.groups.len() > 1;
            let layers = if several { format!(" ({})", group.title()) } else { String::new() };
            format!(
                "balance {:.2}{layers}: the slowest rank of each hop computes {slowest} visible \
                 pairs in all, {even:.1} with an even split",
                slowest as f64 / even
            )
        };
        let lines: Vec<String> = self.groups.iter().enumerate().map(of_group).collect();
        lines.join("\n")
    }

    fn bytes(&self) -> String {
        let is_parted = self.experiment.mesh.tensor > 1;
        let row = |rank: &RankPlan| {
            let sent = [rank.forward, rank.backward, rank.gradients, rank.weights];
            sent.into_iter().chain(is_parted.then_some(rank.tensor)).map(size).collect()
        };
        let head = ["sent per step", "forward", "backward", "gradients", "weights", "tensor"];
        table(if is_parted { &head } else { &head[..5] }, &self.ranks, row)
    }

    fn memory(&self) -> String {
        let row = |rank: &RankPlan| {
            let classes = rank.peak_by_class.named().map(|(_, bytes)| bytes);
            std::iter::once(rank.peak).chain(classes).map(size).collect()
        };
        let head = [
            "peak memory",
            "at once",
            "weights",
            "gradients",
            "optimizer",
            "activations",
            "key/value",
            "workspace",
            "data",
        ];
        let most = |of: fn(&RankPlan) -> u64| self.ranks.iter().map(of).max().unwrap_or_default();
        let further = match (most(|rank| rank.worker), most(|rank| rank.packing)) {
            (0, 0) => String::new(),
            (worker, packing) => format!(
                "  and {} of workspace and {} of activations for every core beyond a rank's first\n",
                size(worker),
                size(packing)
            ),
        };
        table(&head, &self.ranks, row) + &wrapped(&further, 2)
    }
}

/// A table with a row per rank; neighbouring ranks with the same numbers share a row.
fn table(head: &[&str], ranks: &[RankPlan], row: impl Fn(&RankPlan) -> Vec<String>) -> String {
    let mut rows: Vec<(usize, usize, Vec<String>)> = Vec::new();
    for rank in ranks {
        let cells = row(rank);
        match rows.last_mut() {
            Some((_, last, same)) if *same == cells => *last = rank.rank,
            _ => rows.push((rank.rank, rank.rank, cells)),
        }
    }
    let title = |first: usize, last: usize| {
        if first == last { format!("  rank {first}") } else { format!("  ranks {first}-{last}") }
    };
    let (first, columns) = head.split_first().unwrap_or((&"", &[]));
    let cells = rows.iter().flat_map(|(_, _, cells)| cells.iter().map(String::len));
    let width = columns.iter().map(|column| column.len()).chain(cells).max().unwrap_or(0) + 2;
    let titles: Vec<String> = rows.iter().map(|(first, last, _)| title(*first, *last)).collect();
    let left = titles.iter().map(String::len).chain([first.len()]).max().unwrap_or(0);
    let line = |title: &str, cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| format!("{cell:>width$}")).collect();
        format!("{title:<left$}{}\n", cells.concat())
    };
    let columns: Vec<String> = columns.iter().map(|&column| column.to_owned()).collect();
    // Columns that do not fit side by side stand below each other.
    let mut text = String::new();
    for some in blocks(columns.iter().map(|_| width), left, TERMINAL_WIDTH) {
        text += &line(if some.start == 0 { first } else { "" }, &columns[some.clone()]);
        let rows = rows.iter().zip(&titles);
        text.extend(rows.map(|((_, _, cells), title)| line(title, &cells[some.clone()])));
    }
    text
}

#[derive(Serialize)]
struct View<'a> {
    ranks: Vec<Share<'a>>,
    /// The layer groups, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    layers: Option<Vec<Layers<'a>>>,
    rope: Rope,
    /// What `strategy: auto` chose from, where it was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    choice: Option<&'a serde_json::Value>,
}

#[derive(Serialize)]
struct Layers<'a> {
    #[serde(rename = "layers")]
    numbers: &'a [usize],
    strategy: String,
    backward: &'static str,
    slowest_pairs: u64,
    /// Visible pairs, by rank.
    pairs: Vec<u64>,
}

#[derive(Serialize)]
struct Share<'a> {
    rank: usize,
    positions: Every<'a>,
    /// Visible pairs of a layer, where all layers are alike.
    #[serde(skip_serializing_if = "Option::is_none")]
    pairs: Option<u64>,
    bytes: Bytes,
    peak: Classes,
    together: u64,
    worker: u64,
    packing: u64,
}

#[derive(Serialize)]
struct Bytes {
    forward: u64,
    backward: u64,
    gradients: u64,
    weights: u64,
    /// Bytes sent between tensor-parallel ranks; 0, and left out, without tensor parallelism.
    #[serde(skip_serializing_if = "is_nothing")]
    tensor: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_nothing(bytes: &u64) -> bool {
    *bytes == 0
}

#[derive(Serialize)]
struct Rope {
    inv_freq: Vec<f64>,
    attention_factor: f64,
}

impl<'a> From<&'a RankPlan> for Share<'a> {
    fn from(plan: &'a RankPlan) -> Share<'a> {
        let RankPlan { forward, backward, gradients, weights, tensor, .. } = *plan;
        Share {
            rank: plan.rank,
            positions: Every(&plan.positions),
            pairs: <[u64; 1]>::try_from(plan.pairs.as_slice()).ok().map(|[pairs]| pairs),
            bytes: Bytes { forward, backward, gradients, weights, tensor },
            peak: Classes(plan.peak_by_class),
            together: plan.peak,
            worker: plan.worker,
            packing: plan.packing,
        }
    }
}

/// Serializes every position in local order, without a table of them.
struct Every<'a>(&'a Positions);

impl Serialize for Every<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter())
    }
}

/// Serializes bytes by the name of their memory class.
struct Classes(ByClass);

impl Serialize for Classes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.named())
    }
}
