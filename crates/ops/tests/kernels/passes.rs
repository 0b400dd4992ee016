//! Both passes of attention over a scene, by any kernel; and what one comes to held to plain loops.

use annulus_ops::attention::{
    Attended, AttentionKernel, BackwardTile, KeyValueGradients, Reference, Tile,
};
use annulus_ops::testing::{error, error_l2, to_f64};
use candle_core::{DType, Device, Tensor};
use parking_lot::Mutex;

use crate::scene::{Scene, Shard};

/// What came of a pass over all shards.
pub(crate) struct Results {
    pub(crate) attended: Attended,
    pub(crate) dq: Tensor,
    /// Without what was carried in.
    pub(crate) gradients: Vec<KeyValueGradients>,
}

/// How a kernel is called.
#[derive(Clone, Copy)]
pub(crate) struct Calls {
    /// With all tiles at once, or one after the other.
    pub(crate) at_once: bool,
    /// Whether nothing came before and nothing follows: the end of forward is told, no gradients are carried in.
    pub(crate) whole: bool,
}

impl Calls {
    /// How many tiles a call is given.
    fn tiles(self, scene: &Scene) -> usize {
        if self.at_once { scene.shards.len() } else { 1 }
    }
}

/// All at once, gradients carried in.
pub(crate) const PLAIN: Calls = Calls { at_once: true, whole: false };

/// What is wanted of a scene, by plain loops; made once for all that is run of it.
pub(crate) struct Wanted {
    attended: Attended,
    /// The last gradients, and the output that they follow from: kernels that differ in backward alone have the same.
    of: Option<(Attended, Tensor, Vec<KeyValueGradients>)>,
}

impl Wanted {
    pub(crate) fn new(scene: &Scene) -> Wanted {
        Wanted { attended: forward(&Reference, scene, PLAIN), of: None }
    }

    /// Gradients of queries, and of keys and values, where forward has left `attended`.
    fn gradients(
        &mut self,
        scene: &Scene,
        attended: &Attended,
    ) -> &(Attended, Tensor, Vec<KeyValueGradients>) {
        let same = |(before, ..): &(Attended, _, _)| {
            let numbers = |of: &Attended| [&of.out, &of.lse].map(|tensor| to_f64(tensor).unwrap());
            numbers(before) == numbers(attended)
        };
        let of = self.of.take().filter(same).unwrap_or_else(|| {
            let (dq, gradients) = backward(&Reference, scene, attended, PLAIN);
            (attended.clone(), dq, gradients)
        });
        self.of.insert(of)
    }
}

/// Held while a GPU is used: of threads that make what is wanted one uses it at a time.
static USING: Mutex<()> = Mutex::new(());

/// On `device`; what comes of it is brought back.
pub(crate) fn run(
    kernel: &dyn AttentionKernel,
    scene: &Scene,
    device: &Device,
    calls: Calls,
) -> Results {
    let _alone = device.is_cuda().then(|| USING.lock());
    let scene = &scene.on(device);
    let attended = forward(kernel, scene, calls);
    let (dq, gradients) = backward(kernel, scene, &attended, calls);
    let Attended { out, lse } = &attended;
    Results { attended: Attended { out: back(out), lse: back(lse) }, dq, gradients }
}

pub(crate) fn forward(kernel: &dyn AttentionKernel, scene: &Scene, calls: Calls) -> Attended {
    let tiles: Vec<Tile<'_>> = scene.shards.iter().map(|shard| scene.tile(shard)).collect();
    let mut state = kernel.begin(&scene.q, scene.scale).unwrap();
    let mut left = tiles.chunks(calls.tiles(scene));
    while let Some(some) = left.next() {
        if calls.whole && left.len() == 0 {
            state.end_with_next();
        }
        kernel.forward(some, &mut *state, &|| Ok(())).unwrap();
    }
    kernel.finish(state).unwrap()
}

/// Gradients of queries, and of keys and values without what was carried in, where forward has left `attended`.
fn backward(
    kernel: &dyn AttentionKernel,
    scene: &Scene,
    attended: &Attended,
    calls: Calls,
) -> (Tensor, Vec<KeyValueGradients>) {
    let mut state =
        kernel.begin_backward(&scene.q, attended, &scene.gradient, scene.scale).unwrap();
    let mut gradients = Vec::new();
    for some in scene.shards.chunks(calls.tiles(scene)) {
        let tiles = some.iter().map(|shard| BackwardTile {
            tile: scene.tile(shard),
            carried: (!calls.whole).then(|| shard.carried()),
        });
        gradients.extend(kernel.backward(tiles.collect(), &mut *state, &|| Ok(())).unwrap());
    }
    let dq = back(&kernel.finish_backward(state).unwrap());
    let own = gradients.iter().zip(&scene.shards).map(|(made, shard)| {
        let own = |found: &Tensor, carried: &Tensor| {
            let found = back(found);
            if calls.whole { found } else { less(&found, &back(carried)) }
        };
        let [dk, dv] = &shard.carried;
        KeyValueGradients { dk: own(&made.dk, dk), dv: own(&made.dv, dv) }
    });
    (dq, own.collect())
}

pub(crate) fn back(tensor: &Tensor) -> Tensor {
    tensor.to_device(&Device::Cpu).unwrap()
}

impl Shard {
    /// Copies, since they are added to in place.
    fn carried(&self) -> KeyValueGradients {
        let [dk, dv] = [0, 1].map(|index| self.carried[index].copy().unwrap());
        KeyValueGradients { dk, dv }
    }
}

impl Results {
    /// Holds each tensor's error to its bound; the largest share that an error has of its bound. Gradients are held to those of the same
    /// output: its rounding to 16 bits is in `out` already, and would be most of the error where few keys are seen.
    pub(crate) fn check(&self, scene: &Scene, all: &mut Wanted, what: &str) -> f64 {
        let wanted = &all.attended;
        let dtype = scene.q.dtype();
        let [out, gradient] = bounds(dtype);
        let [lse, wanted_lse] =
            [&self.attended, wanted].map(|attended| to_f64(&attended.lse).unwrap());
        for (row, (lse, wanted)) in lse.iter().zip(&wanted_lse).enumerate() {
            let near = (lse - wanted).abs() <= 2e-5 * wanted.abs().max(1.0);
            assert!(lse == wanted || near, "{what}: lse of row {row} is {lse}, expected {wanted}");
        }
        let mut worst = 0.0_f64;
        let mut near = |name: &str, found: &Tensor, wanted: &Tensor, bound: f64| {
            let off =
                if dtype == DType::F32 { error(found, wanted) } else { error_l2(found, wanted) };
            let off = off.unwrap();
            assert!(off <= bound, "{what}: {name} is off by {off:e}, expected at most {bound:e}");
            worst = worst.max(off / bound);
        };
        near("out", &self.attended.out, &wanted.out, out);
        let (_, dq, gradients) = all.gradients(scene, &self.attended);
        near("dq", &self.dq, dq, gradient);
        let made = self.gradients.iter().zip(gradients);
        for (index, (found, wanted)) in made.enumerate() {
            near(&format!("dk of {index}"), &found.dk, &wanted.dk, gradient);
            near(&format!("dv of {index}"), &found.dv, &wanted.dv, gradient);
        }
        worst
    }
}

/// What was added to `carried`, in f64.
fn less(all: &Tensor, carried: &Tensor) -> Tensor {
    let wide = |tensor: &Tensor| tensor.to_dtype(DType::F64).unwrap();
    (wide(all) - wide(carried)).unwrap()
}

/// Of out and of gradients: for 16 bits relative in the 2-norm, as weights and gradients of scores are rounded once; in f32 of the
/// largest element.
fn bounds(dtype: DType) -> [f64; 2] {
    match dtype {
        DType::BF16 => [4e-3, 8e-3],
        DType::F16 => [5e-4, 1e-3],
        _ => [5e-6, 5e-6],
    }
}
