//! Promises of each stage, and the numbers that follow from a config.

use std::collections::BTreeSet;

use annulus_model::{Config, Forward, GradientSink, Keep, Llama, Shard, Stage, Weights};
use annulus_ops::testing::{error, error_l2, to_f64};
use annulus_ops::{Key, normal};
use candle_core::{DType, Device, Result, Tensor};

use super::support::{
    Summed, gradients, kernels, logits, loss, normed, shaped, shard, tiny, tokens, uneven,
};

/// A model with every feature.
fn full() -> Config {
    shaped(shaped(tiny(), normed), |shape| shape.mlp_bias = true)
}

fn setup(config: &Config) -> (Llama, Weights, Shard) {
    let [fused, _] = kernels();
    (Llama::new(config, 8), uneven(config), shard(config, tokens(config, 2, 9), fused))
}

/// Activations [2, 9, D].
fn activations(config: &Config) -> Tensor {
    let table = uneven(config)["model.embed_tokens.weight"].clone();
    let rows = Tensor::arange(0u32, 18, &Device::Cpu).unwrap();
    table.index_select(&rows, 0).unwrap().reshape((2, 9, config.shape.hidden_size)).unwrap()
}

/// The weights of one stage, without others.
fn only(stage: &dyn Stage, weights: &Weights) -> Weights {
    let names: BTreeSet<_> = stage.parameters().iter().collect();
    let own = weights.iter().filter(|(name, _)| names.contains(name));
    own.map(|(name, weight)| (name.clone(), weight.clone())).collect()
}

#[test]
fn stages_name_exactly_the_parameters_that_they_use() {
    for config in [full(), shaped(full(), |shape| shape.tie_word_embeddings = true)] {
        let (model, weights, shard) = setup(&config);
        assert_eq!(model.stages.len(), 2 * config.shape.num_hidden_layers + 2);
        let x = activations(&config);
        let mut used = BTreeSet::new();
        for stage in &model.stages {
            let own = only(stage.as_ref(), &weights);
            let found = stage.forward(&x, &own, &shard).expect("its own weights are enough");
            let y = found.output;
            assert!(y.elem_count() > 0);
            for name in stage.parameters() {
                let mut fewer = own.clone();
                fewer.remove(name);
                let error = stage.forward(&x, &fewer, &shard).err().unwrap().to_string();
                let said = format!("internal: the weight `{name}` was not handed in");
                assert!(error.contains(&said), "{error}");
                used.insert(name.clone());
            }
        }
        let specified: Vec<_> =
            Llama::specification(&config).into_iter().map(|parameter| parameter.name).collect();
        assert_eq!(used.into_iter().collect::<Vec<_>>(), specified);
    }
}

#[test]
fn a_few_rows_at_a_time_are_the_whole() {
    let config = full();
    let (model, weights, shard) = setup(&config);
    let rowwise: Vec<_> = model.stages.iter().map(|stage| stage.rowwise()).collect();
    assert_eq!(rowwise, [false, false, true, false, true, false]);

    let stage = model.stages[2].as_ref();
    let weights = only(stage, &weights);
    let seed = activations(&config).affine(0.5, 0.1).unwrap();
    let x = activations(&config);
    let (whole, all) = there_and_back(stage, (&x, &seed), &weights, &shard);
    let rows = |x: &Tensor| x.flatten(0, 1).unwrap();

    for (chunk, keep) in [(1, Keep::Attention), (4, Keep::Everything), (18, Keep::Attention)] {
        let shard = Shard { keep, ..shard.clone() };
        let mut outputs = Vec::new();
        let mut sums = Summed::default();
        for begin in (0..18).step_by(chunk) {
            let some = |x| rows(x).narrow(0, begin, chunk.min(18 - begin)).unwrap();
            let Forward { output, kept, back } =
                stage.forward(&some(&x), &weights, &shard).unwrap();
            back(kept, &some(&seed), &weights, &mut sums).unwrap();
            outputs.push(output);
        }
        let output = Tensor::cat(&outputs, 0).unwrap();
        assert!(error(&output, &rows(&whole)).unwrap() < 1e-6, "chunks of {chunk}");
        for name in weights.keys() {
            let error = error_l2(&sums.0[name], &all[name]).unwrap();
            assert!(error < 1e-6, "chunks of {chunk}: {name} {error:e}");
        }
    }
}

/// A stage's output for x, and its gradients for dy.
fn there_and_back(
    stage: &dyn Stage,
    (x, dy): (&Tensor, &Tensor),
    weights: &Weights,
    shard: &Shard,
) -> (Tensor, Weights) {
    let keep = if shard.keep == Keep::Nothing { Keep::Everything } else { shard.keep };
    let shard = Shard { keep, ..shard.clone() };
    let Forward { output, kept, back } = stage.forward(x, weights, &shard).unwrap();
    let mut harvest = Once::default();
    let dx = back(kept, dy, weights, &mut harvest);
    assert_eq!(dx.unwrap().dims(), x.dims());
    (output, harvest.0)
}

/// One gradient by name.
#[derive(Default)]
struct Once(Weights);

impl GradientSink for Once {
    fn sum(&self, _: &str) -> Option<Tensor> {
        None
    }
    fn add(&mut self, name: &str, gradient: Tensor) -> Result<()> {
        assert!(self.0.insert(name.to_owned(), gradient).is_none(), "{name} twice");
        Ok(())
    }
}

/// Keeping more changes what is recomputed, but no bit of the results.
#[test]
fn gradients_are_the_same_bits_whatever_is_kept() {
    for dtype in [DType::F32, DType::BF16] {
        let config = full();
        let (model, weights, shard) = setup(&config);
        let weights = weights.into_iter().map(|(name, w)| (name, w.to_dtype(dtype).unwrap()));
        let weights = weights.collect();
        let found = |keep| {
            let shard = Shard { keep, ..shard.clone() };
            let (loss, gradients) = gradients(&model, &weights, &shard);
            let gradients = gradients.into_iter().map(|(name, g)| (name, to_f64(&g).unwrap()));
            (to_f64(&loss).unwrap(), gradients.collect::<Vec<_>>())
        };
        assert_eq!(found(Keep::Attention), found(Keep::Everything));
        assert_eq!(found(Keep::Nothing), found(Keep::Everything));
    }
}

#[test]
fn there_is_no_way_back_where_nothing_was_kept() {
    let config = full();
    let (model, weights, shard) = setup(&config);
    let x = activations(&config);
    for stage in &model.stages[1..] {
        let Forward { output, kept, back } = stage.forward(&x, &weights, &shard).unwrap();
        assert!(kept.is_empty());
        let refused = back(kept, &output, &weights, &mut Once::default());
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("nothing was kept"), "{error}");
    }
}

#[test]
fn bf16_weights_give_a_loss_near_that_of_f32() {
    let config = full();
    let (model, weights, shard) = setup(&config);
    let halved = weights.iter().map(|(name, w)| (name.clone(), w.to_dtype(DType::BF16).unwrap()));
    let halved: Weights = halved.collect();
    let widened = halved.iter().map(|(name, w)| (name.clone(), w.to_dtype(DType::F32).unwrap()));
    let exact = loss(&model, &widened.collect(), &shard);
    let (loss, gradients) = gradients(&model, &halved, &shard);
    assert_eq!(loss.dtype(), DType::F64);
    assert!(error(&loss, &exact).unwrap() < 1e-2);
    assert_eq!(logits(&model, &halved, &shard).dtype(), DType::F32);
    for (name, gradient) in gradients {
        assert_eq!(gradient.dtype(), DType::F32);
        assert!(to_f64(&gradient).unwrap().iter().all(|value| value.is_finite()), "{name}");
    }
}

#[test]
fn fresh_weights_follow_from_seed_and_name() {
    let config = shaped(shaped(tiny(), normed), |shape| {
        (shape.hidden_size, shape.vocab_size) = (64, Some(512));
    });
    let weights = Llama::random(&config, 1).unwrap();
    let shapes: Vec<_> =
        weights.iter().map(|(name, w)| (name.clone(), w.dims().to_vec())).collect();
    let specified = Llama::specification(&config).into_iter();
    assert_eq!(shapes, specified.map(|one| (one.name, one.shape)).collect::<Vec<_>>());

    let values = |weights: &Weights, name: &str| to_f64(&weights[name]).unwrap();
    let embedding = values(&weights, "model.embed_tokens.weight");
    let len = embedding.len() as f64;
    let mean = embedding.iter().sum::<f64>() / len;
    let deviation = (embedding.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / len).sqrt();
    // Five standard errors of 32768 draws.
    assert!(mean.abs() < 0.2 * 5.0 / len.sqrt(), "{mean}");
    assert!((deviation / 0.2 - 1.0).abs() < 5.0 / (2.0 * len).sqrt(), "{deviation}");
    assert_eq!(values(&weights, "model.norm.weight"), [1.0; 64]);
    assert_eq!(values(&weights, "model.layers.0.self_attn.q_norm.weight"), [1.0; 8]);
    assert_eq!(values(&weights, "model.layers.1.self_attn.k_proj.bias"), [0.0; 16]);

    assert_eq!(embedding, values(&Llama::random(&config, 1).unwrap(), "model.embed_tokens.weight"));
    assert_ne!(embedding, values(&Llama::random(&config, 2).unwrap(), "model.embed_tokens.weight"));
    assert_ne!(embedding, values(&weights, "lm_head.weight"));

    let narrow = Llama::random(&Config { dtype: DType::BF16, ..config }, 1).unwrap();
    assert!(narrow.values().all(|weight| weight.dtype() == DType::BF16));
    let rounded = weights["lm_head.weight"].to_dtype(DType::BF16).unwrap();
    assert_eq!(values(&narrow, "lm_head.weight"), to_f64(&rounded).unwrap());
}

#[test]
fn all_cores_draw_the_weights_that_one_draws() {
    // Enough for several cores, whose pieces end within its rows.
    let config = shaped(tiny(), |shape| {
        (shape.hidden_size, shape.vocab_size) = (72, Some(20_001));
    });
    let all = Llama::random(&config, 3).unwrap();
    let embedding = all["model.embed_tokens.weight"].flatten_all().unwrap();
    let elements = embedding.elem_count();
    let parameters = Llama::specification(&config);
    let one = parameters.iter().find(|one| one.name == "model.embed_tokens.weight").unwrap();
    let bits = |tensor: &Tensor| -> Vec<u32> {
        tensor.to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
    };
    let alone = |runs: &[(usize, usize)]| Llama::fresh_elements(&config, one, 3, runs).unwrap();
    assert!(bits(&embedding) == bits(&alone(&[(0, elements)])));
    // The numbers themselves, drawn at once.
    let key = Key { seed: 3, purpose: "init", name: "model.embed_tokens.weight" };
    let drawn = normal(key, 0, elements);
    let deviation = config.shape.initializer_range as f32;
    let at_once: Vec<u32> = drawn.iter().map(|number| (number * deviation).to_bits()).collect();
    assert!(bits(&embedding) == at_once);
    let runs = [(1, 3), (65_535, 65_540), (elements - 1, 1)];
    let apart: Vec<u32> = runs.iter().flat_map(|run| bits(&alone(&[*run]))).collect();
    let there = |(first, many): &(usize, usize)| embedding.narrow(0, *first, *many).unwrap();
    let wanted: Vec<u32> = runs.iter().flat_map(|run| bits(&there(run))).collect();
    assert!(apart == wanted && bits(&alone(&runs)) == wanted);
}
