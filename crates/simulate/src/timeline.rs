//! The planned trace: a step as the cost model expects it, in the form that a run would record.
//!
//! It makes the walks of an [`Estimate`](crate::Estimate) for one layer after another, so that the trace ends when the estimate says; where
//! layers differ only approximately, since the estimate adds their times up. A rank posts a hop when it begins it; a block that arrives
//! while the rank computes is not waited for. Instants take a nanosecond, since a span without length cannot be seen.

use std::sync::Arc;

use annulus_experiment::Replica;
use annulus_plan::{LayerGroup, Plan, label};
use annulus_sequence::{Hop, Move, Pass, Schedule, Schedules, moves_and_tiles, pairs_per_hop};
use annulus_trace::{self as trace, Activity, Moved, RankLocation, Span, Trace};
use annulus_yaml::{Problem, Problems};

use crate::choose::enough_devices;
use crate::estimate::{Timing, waits_behind};
use crate::load::Counted;
use crate::waits::Waits;
use crate::walk::{Event, latest, watched};
use crate::{Cluster, Load};

/// The most tiles and moves that a trace lists: each takes some 500 bytes of its file, and at most 256 MiB are read.
const MOST_LISTED: usize = 1 << 19;

/// The planned trace: what every rank does when in a step of `plan` on `cluster`.
///
/// # Errors
/// When there are fewer devices than ranks, or more tiles and moves than a trace can list.
pub fn timeline(plan: &Plan, cluster: &Cluster) -> Result<Trace, Problems> {
    enough_devices(&plan.experiment, cluster)?;
    few_enough(plan)?;
    let loads = loads(plan, cluster);
    let pairs = |schedules: &Arc<Schedules>| schedules.both().map(pairs_per_hop);
    let pairs: Vec<_> = plan.schedules.iter().map(pairs).collect();
    let mut writer = Writer { plan, spans: vec![Vec::new(); plan.world()] };
    let mut ends = Vec::new();
    for replica in 0..plan.experiment.mesh.data {
        let own = plan.experiment.mesh.replica(replica);
        let seen = cluster.of_replica(&plan.experiment.mesh, replica);
        let timing = Timing { plan, cluster: &seen, loads: &[] };
        // Tensor-parallel ranks do the same.
        for part in 0..plan.experiment.mesh.tensor {
            let own = Replica { first: own.first + part, ..own };
            ends.push(writer.replica(timing, own, &loads, &pairs));
        }
    }
    writer.behind(latest(&ends), waits_behind(plan, cluster));
    Ok(Trace {
        title: format!("{}, {}", plan.experiment.name, plan.strategies(label)),
        step: None,
        planned: Some(cluster.name.clone()),
        locations: locations(plan, cluster),
        ranks: writer.spans,
    })
}

/// The node of every rank, where there are several nodes.
fn locations(plan: &Plan, cluster: &Cluster) -> Vec<RankLocation> {
    let location = |rank| {
        let process = cluster.node_of(rank);
        RankLocation { process, host: format!("node {process}") }
    };
    let ranks = 0..plan.world();
    if ranks.len() > cluster.devices_per_node { ranks.map(location).collect() } else { Vec::new() }
}

/// The load of both passes, by layer group.
fn loads(plan: &Plan, cluster: &Cluster) -> Vec<[Load; 2]> {
    let of_group = |schedules: &Arc<Schedules>| {
        let mut counted = Counted::new(plan.block(), cluster.rates.tile);
        schedules.both().map(|schedule| counted.load(schedule))
    };
    plan.schedules.iter().map(of_group).collect()
}

/// Refuses a step with more tiles and moves than a trace can list.
fn few_enough(plan: &Plan) -> Result<(), Problem> {
    let of_group = |(group, schedules): (&LayerGroup, &Arc<Schedules>)| {
        let both = schedules.both().into_iter().flat_map(moves_and_tiles).sum::<usize>();
        both.saturating_mul(group.layers.len())
    };
    let layers = plan.groups.iter().zip(&plan.schedules).map(of_group);
    let mesh = &plan.experiment.mesh;
    let times = plan.micro_batches.saturating_mul(mesh.data * mesh.tensor);
    let listed = layers.fold(0, usize::saturating_add).saturating_mul(times);
    if listed <= MOST_LISTED {
        return Ok(());
    }
    let message = format!(
        "a trace of this step would list {listed} tiles and moves, more than {MOST_LISTED}"
    );
    let hint = "trace it with fewer layers (`model.num_hidden_layers`), micro-batches or ranks";
    Err(plan.experiment.places.problem("mesh", message).hint(hint))
}

/// Writes spans by rank of the world.
struct Writer<'a> {
    plan: &'a Plan,
    spans: Vec<Vec<Span>>,
}

/// One layer's pass on one replica.
#[derive(Clone, Copy)]
struct Walked<'a> {
    layer: usize,
    own: Replica,
    /// The cluster as the replica sees it.
    cluster: &'a Cluster,
    schedule: &'a Schedule,
    /// Visible pairs by hop and rank.
    pairs: &'a [Vec<u64>],
    load: &'a Load,
}

impl Writer<'_> {
    /// Writes all micro-batches of a replica; returns when its last rank is done.
    fn replica(
        &mut self,
        timing: Timing<'_>,
        own: Replica,
        loads: &[[Load; 2]],
        pairs: &[[Vec<Vec<u64>>; 2]],
    ) -> f64 {
        let (cluster, plan) = (timing.cluster, self.plan);
        let kind_of = |layer: usize| {
            let has = |group: &LayerGroup| group.layers.contains(&layer);
            plan.groups.iter().position(has).unwrap_or_default()
        };
        let ([ahead, back, loss], between) = (timing.products(), timing.between());
        let layers = self.plan.shape.num_hidden_layers;
        let mut clock = 0.0;
        for _ in 0..self.plan.micro_batches {
            let mut clocks = vec![clock; ahead.len()];
            for layer in 0..layers {
                let group = kind_of(layer);
                let (schedule, load) = (plan.schedules[group].of(Pass::Forward), &loads[group][0]);
                let pairs = pairs[group][0].as_slice();
                let walked = Walked { layer, own, cluster, schedule, pairs, load };
                clocks = self.layer(walked, &clocks, &ahead, between[0]);
            }
            clock = latest(&clocks);
            clock = self.loss(own, clock, &loss, between[2]);
            let mut clocks = vec![clock; back.len()];
            for layer in (0..layers).rev() {
                let group = kind_of(layer);
                let (schedule, load) = (plan.schedules[group].of(Pass::Backward), &loads[group][1]);
                let pairs = pairs[group][1].as_slice();
                let walked = Walked { layer, own, cluster, schedule, pairs, load };
                clocks = self.layer(walked, &clocks, &back, between[1]);
            }
            clock = latest(&clocks);
        }
        clock
    }

    /// Writes the loss of a replica; returns when its last rank is done.
    fn loss(&mut self, own: Replica, clock: f64, loss: &[f64], between: f64) -> f64 {
        for (place, seconds) in loss.iter().enumerate() {
            let rank = own.rank(place);
            self.stage(rank, "loss", clock, clock + seconds);
            self.rows(rank, 2, clock + seconds, between);
        }
        clock + latest(loss)
    }

    /// Writes a layer, products with weights, then attention; returns when every rank is done.
    fn layer(
        &mut self,
        walked: Walked<'_>,
        clocks: &[f64],
        products: &[f64],
        between: f64,
    ) -> Vec<f64> {
        let Walked { layer, own, cluster, load, .. } = walked;
        let started: Vec<f64> = clocks.iter().zip(products).map(|(a, b)| a + b).collect();
        let mut events = Vec::new();
        let walk = watched(load, cluster, &started, &mut |event| events.push(event));
        let hops = Hops::of(walked.schedule, &events);
        for place in 0..load.world() {
            let pass = trace::Pass::from(load.pass).name();
            let rank = own.rank(place);
            self.stage(rank, &format!("products {pass} {layer}"), clocks[place], started[place]);
            self.rows(rank, usize::from(load.pass == Pass::Backward), started[place], between);
            let name = format!("attention {pass} {layer}");
            self.stage(rank, &name, started[place], walk.finish[place]);
            self.attention(walked, place, &hops);
        }
        walk.finish
    }

    /// Writes the hops of one rank.
    fn attention(&mut self, walked: Walked<'_>, place: usize, hops: &Hops) {
        let Walked { layer, own, schedule, pairs, .. } = walked;
        let at = |hop: usize| trace::Place { layer, pass: schedule.pass.into(), hop };
        let moved = |moved: &Move| {
            let bytes = self.plan.block().bytes(moved.block, schedule.pass);
            let [from, to] = [moved.from, moved.to].map(|place| own.rank(place));
            Moved { block: moved.block.into(), from, to, bytes, planned_bytes: bytes }
        };
        let mut spans = Spans::default();
        for (hop, plan) in schedule.of_rank(place).iter().enumerate() {
            let Done { begin, computed, end } = hops.done[place][hop];
            spans.post(nanoseconds(begin), at(hop), plan, &moved);
            if !plan.tiles.is_empty() {
                let tiles = plan.tiles.iter().map(Into::into).collect();
                let pairs = pairs[hop][place] * self.plan.micro_batch as u64;
                let activity = Activity::Compute { place: at(hop), tiles, pairs };
                spans.push([begin, computed].map(nanoseconds), activity);
            }
            spans.reach(nanoseconds(computed));
            for Due { posted, received, at: arrived } in hops.due(place, hop) {
                let since = nanoseconds(hops.done[place][*posted].begin);
                spans.wait(nanoseconds(*arrived), at(*posted), moved(received), since);
            }
            if !plan.sends.is_empty() {
                spans.drain(nanoseconds(end), at(hop));
            }
        }
        self.spans[own.rank(place)].extend(spans.all);
    }

    /// Writes the exchange of rows between tensor-parallel ranks that ends at `end`; `part` is the index into [`Plan::tensor_bytes_of`].
    fn rows(&mut self, rank: usize, part: usize, end: f64, seconds: f64) {
        let tensor = self.plan.experiment.mesh.tensor;
        if tensor == 1 {
            return;
        }
        let first = rank / tensor * tensor;
        let bytes = self.plan.tensor_bytes_of(self.plan.ranks[rank].positions.tokens())[part];
        let among = Some([first, first + tensor - 1]);
        let activity = Activity::Sum { name: String::from("rows"), bytes, among };
        self.spans[rank].push(span([end - seconds, end].map(nanoseconds), activity));
    }

    /// Writes what all ranks wait for after backward: gradient sums, gathers of sharded weights, offloading.
    fn behind(&mut self, begin: f64, waits: Waits) {
        let (Waits { gradients, weights, .. }, offload) = (waits, waits.offloaded.seconds());
        let (sharding, tensor) = (self.plan.sharding(), self.plan.experiment.mesh.tensor);
        let [holders, _] = sharding.groups();
        let gathered = begin + gradients;
        let end = gathered + weights;
        for (rank, plan) in self.plan.ranks.iter().enumerate() {
            let [_, mirror] = sharding.place(rank / tensor / sharding.here);
            let holders = Some(holders[mirror].ends(tensor));
            let all = [
                ("gradients", plan.gradients, None, [begin, gathered]),
                ("weights", plan.weights, holders, [gathered, end]),
            ];
            for (name, bytes, among, times) in all.into_iter().filter(|one| one.1 > 0) {
                let activity = Activity::Sum { name: name.to_owned(), bytes, among };
                self.spans[rank].push(span(times.map(nanoseconds), activity));
            }
            if offload > 0.0 {
                self.stage(rank, "offload", end, end + offload);
            }
        }
    }

    fn stage(&mut self, rank: usize, name: &str, begin: f64, end: f64) {
        let activity = Activity::Stage { name: name.to_owned() };
        self.spans[rank].push(span([begin, end].map(nanoseconds), activity));
    }
}

/// The times of one hop of a rank.
#[derive(Clone, Copy, Default)]
struct Done {
    begin: f64,
    computed: f64,
    end: f64,
}

/// A block that a rank awaits at the end of a hop.
struct Due {
    /// The hop that posted the block.
    posted: usize,
    received: Move,
    at: f64,
}

/// The times of a walk, by rank and hop.
struct Hops {
    done: Vec<Vec<Done>>,
    due: Vec<Vec<Vec<Due>>>,
}

impl Hops {
    fn of(schedule: &Schedule, events: &[Event]) -> Hops {
        let (world, count) = (schedule.world(), schedule.hops());
        let mut hops = Hops {
            done: vec![vec![Done::default(); count]; world],
            due: (0..world).map(|_| (0..count).map(|_| Vec::new()).collect()).collect(),
        };
        for event in events {
            match *event {
                Event::Done { hop, rank, begin, computed, end } => {
                    hops.done[rank][hop] = Done { begin, computed, end };
                }
                Event::Arrived { hop, from, index, at } => {
                    let received = schedule.hop(from, hop).sends[index];
                    let awaited = (hop + received.hops).min(count) - 1;
                    hops.due[received.to][awaited].push(Due { posted: hop, received, at });
                }
            }
        }
        // Blocks are taken in the order in which they arrive.
        hops.due.iter_mut().flatten().for_each(|due| due.sort_by(|a, b| a.at.total_cmp(&b.at)));
        hops
    }

    fn due(&self, rank: usize, hop: usize) -> &[Due] {
        &self.due[rank][hop]
    }
}

/// The spans of one attention on one rank, in order.
#[derive(Default)]
struct Spans {
    all: Vec<Span>,
    /// The time up to which communication is written.
    reached: u64,
}

impl Spans {
    fn push(&mut self, times: [u64; 2], activity: Activity) {
        self.all.push(span(times, activity));
    }

    fn reach(&mut self, at: u64) {
        self.reached = self.reached.max(at);
    }

    /// Writes a nanosecond for every block that is posted.
    fn post(
        &mut self,
        begin: u64,
        place: trace::Place,
        hop: &Hop,
        moved: &impl Fn(&Move) -> Moved,
    ) {
        if hop.sends.is_empty() && hop.receives.is_empty() {
            return;
        }
        self.reach(begin);
        let (begin, mut bytes) = (self.reached, 0);
        for sent in &hop.sends {
            let moved = moved(sent);
            bytes += moved.bytes;
            self.push([self.reached; 2], Activity::Send { place, moved });
            self.reached += 1;
        }
        let receives = hop.receives.len();
        self.reach(begin + 1);
        self.push([begin, self.reached], Activity::Post { place, bytes, receives });
    }

    fn wait(&mut self, arrived: u64, place: trace::Place, moved: Moved, posted: u64) {
        let begin = self.reached;
        self.reached = arrived.max(begin + 1);
        let flight = self.reached - posted.min(begin);
        self.push([begin, self.reached], Activity::Wait { place, moved, flight });
    }

    fn drain(&mut self, end: u64, place: trace::Place) {
        if end > self.reached {
            self.push([self.reached, end], Activity::Drain { place });
            self.reached = end;
        }
    }
}

/// A span of at least a nanosecond.
fn span([begin, end]: [u64; 2], activity: Activity) -> Span {
    Span { begin, end: end.max(begin + 1), activity }
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}
