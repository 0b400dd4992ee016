//! Adapters: the function of the merged model, gradients by the chain rule, dropout by place.

use annulus_architecture::{FullyTrained, Lora, Target};
use annulus_model::{Config, DropoutKey, Keep, Llama, Shard, Weights};
use annulus_ops::testing::{error, error_l2, to_f64};
use candle_core::{DType, Tensor};

use super::support::{
    gradients, kernels, logits, loss, normed, shaped, shard, tiny, tokens, uneven,
};

/// A model with adapters beside every projection; norms and both tables are trained, too.
fn all() -> Config {
    let lora = Lora {
        rank: 3,
        alpha: 2.1,
        rslora: false,
        dropout: 0.0,
        targets: Target::WORDS.iter().filter_map(|word| Target::from_word(word)).collect(),
        train: vec![FullyTrained::Embeddings, FullyTrained::Norms, FullyTrained::Head],
        path: None,
    };
    Config { lora: Some(lora), ..shaped(tiny(), normed) }
}

fn changed(config: &Config, change: impl Fn(&mut Lora)) -> Config {
    let mut config = config.clone();
    config.lora.iter_mut().for_each(change);
    config
}

/// Weights in which no adapter's b is 0.
fn adapted(config: &Config) -> Weights {
    let mut weights = uneven(config);
    for (name, weight) in &mut weights {
        if name.ends_with(Lora::B) {
            let values: Vec<f32> =
                (0..weight.elem_count()).map(|i| ((i * 7 % 11) as f32 - 5.0) / 20.0).collect();
            *weight = Tensor::from_vec(values, weight.shape(), weight.device()).unwrap();
        }
    }
    weights
}

fn setup(config: &Config) -> (Llama, Weights, Shard) {
    let [kernel, _] = kernels();
    let shard = shard(config, tokens(config, 2, 9), kernel);
    (Llama::new(config, 5), adapted(config), shard)
}

#[test]
fn adapters_compute_what_the_merged_model_does() {
    for config in [all(), shaped(all(), |shape| shape.tie_word_embeddings = true)] {
        let (model, weights, shard) = setup(&config);
        let merged = Llama::merged(&config, weights.clone()).unwrap();
        let plain = Config { lora: None, ..config.clone() };
        let names: Vec<_> = Llama::specification(&plain).into_iter().map(|p| p.name).collect();
        assert_eq!(merged.keys().cloned().collect::<Vec<_>>(), names);
        let theirs = logits(&Llama::new(&plain, 5), &merged, &shard);
        let error = error(&logits(&model, &weights, &shard), &theirs).unwrap();
        assert!(error < 1e-5, "{error:e}");
    }
}

/// With w + s b a in place of w: da = s bᵀ dw, db = s dw aᵀ; what is trained in full has the merged model's gradient.
#[test]
fn gradients_are_those_of_the_merged_model() {
    let config = all();
    let (model, weights, shard) = setup(&config);
    let merged = Llama::merged(&config, weights.clone()).unwrap();
    let plain = Llama::new(&Config { lora: None, ..config.clone() }, 5);
    let (_, theirs) = gradients(&plain, &merged, &shard);
    let scale = config.lora.as_ref().unwrap().scale();
    for keep in [Keep::Attention, Keep::Everything] {
        let shard = Shard { keep, ..shard.clone() };
        let (_, own) = gradients(&model, &weights, &shard);
        let trained = Llama::specification(&config).into_iter().filter(|p| p.trained);
        let trained: Vec<_> = trained.map(|parameter| parameter.name).collect();
        assert_eq!(own.keys().cloned().collect::<Vec<_>>(), trained, "nothing else has one");
        for (name, gradient) in &own {
            let beside = |end: &str, other: &str| {
                let path = name.strip_suffix(end)?;
                let of_weight = &theirs[&format!("{path}.weight")];
                Some(((of_weight * scale).unwrap(), &weights[&format!("{path}{other}")]))
            };
            let wanted = match (beside(Lora::A, Lora::B), beside(Lora::B, Lora::A)) {
                (Some((dw, b)), _) => b.t().unwrap().matmul(&dw).unwrap(),
                (_, Some((dw, a))) => dw.matmul(&a.t().unwrap()).unwrap(),
                _ => theirs[name].clone(),
            };
            let error = error_l2(gradient, &wanted).unwrap();
            assert!(error < 1e-5, "{name}: {error:e}");
        }
    }
}

#[test]
fn what_is_trained_is_what_was_asked_for() {
    let config = changed(&all(), |lora| {
        (lora.train, lora.targets) = (Vec::new(), vec![Target::Value, Target::Down]);
    });
    let specification = Llama::specification(&config).into_iter().filter(|p| p.trained);
    let names: Vec<_> = specification.map(|parameter| parameter.name).collect();
    let within = |layer, path, matrix| format!("model.layers.{layer}.{path}.lora_{matrix}.weight");
    let wanted = [0, 1].into_iter().flat_map(|layer| {
        let both = ["mlp.down_proj", "self_attn.v_proj"].into_iter();
        both.flat_map(move |path| ["A", "B"].map(|matrix| within(layer, path, matrix)))
    });
    assert_eq!(names, wanted.collect::<Vec<_>>());
    let (model, weights, shard) = setup(&config);
    let (_, gradients) = gradients(&model, &weights, &shard);
    assert_eq!(gradients.into_keys().collect::<Vec<_>>(), names);
}

#[test]
fn fresh_adapters_change_nothing() {
    let config = all();
    let (model, _, shard) = setup(&config);
    let weights = Llama::random(&config, 7).unwrap();
    let plain = Config { lora: None, ..config.clone() };
    let theirs = Llama::random(&plain, 7).unwrap();
    let theirs = logits(&Llama::new(&plain, 5), &theirs, &shard);
    assert_eq!(to_f64(&logits(&model, &weights, &shard)).unwrap(), to_f64(&theirs).unwrap());
    let a = to_f64(&weights["model.layers.0.mlp.down_proj.lora_A.weight"]).unwrap();
    let variance = a.iter().map(|a| a * a).sum::<f64>() / a.len() as f64;
    let wanted = 1.0 / (3.0 * config.shape.intermediate_size as f64);
    assert!((variance / wanted - 1.0).abs() < 0.6, "{variance} for {wanted}");
}

/// Along a direction the loss changes as the gradient says, with dropout of adapters' inputs; without training there is no dropout.
#[test]
fn dropped_gradients_are_differences() {
    let config = changed(&all(), |lora| lora.dropout = 0.3);
    let (model, weights, shard) = setup(&config);
    let still = loss(&model, &weights, &shard);
    let dropout = Some(DropoutKey { seed: 5, sequence: 3 });
    let shard = Shard { dropout, keep: Keep::Attention, ..shard };
    let (dropped, gradients) = gradients(&model, &weights, &shard);
    let of = |tensor: &Tensor| to_f64(tensor).unwrap()[0];
    assert!((of(&dropped) - of(&still)).abs() > 1e-3, "something is left out");
    let along = |sign: f64| {
        let step = |(name, weight): (&String, &Tensor)| {
            let moved = gradients.get(name).map_or(Ok(weight.clone()), |gradient| {
                weight + (gradient * (sign * 1e-4)).unwrap()
            });
            (name.clone(), moved.unwrap())
        };
        of(&loss(&model, &weights.iter().map(step).collect(), &shard))
    };
    let found = (along(1.0) - along(-1.0)) / 2e-4;
    let squares = |gradient: &Tensor| to_f64(gradient).unwrap().iter().map(|g| g * g).sum::<f64>();
    let wanted: f64 = gradients.values().map(squares).sum();
    assert!((found / wanted - 1.0).abs() < 1e-2, "{found} for {wanted}");
}

/// An adapter's dropout of a row depends on the row's place, not on which rows come with it.
#[test]
fn a_few_dropped_rows_at_a_time_are_the_whole() {
    let config = changed(&all(), |lora| lora.dropout = 0.3);
    let (model, weights, shard) = setup(&config);
    let shard = Shard { dropout: Some(DropoutKey { seed: 5, sequence: 0 }), ..shard };
    let stage = model.stages[2].as_ref();
    let x = weights["model.embed_tokens.weight"].narrow(0, 0, 18).unwrap();
    let whole = stage.forward(&x, &weights, &shard).unwrap().output;
    let pieces = [0, 4, 8, 12, 16].map(|first| {
        let piece = x.narrow(0, first, 4.min(18 - first)).unwrap();
        stage.forward_from(first, &piece, &weights, &shard).unwrap().output
    });
    assert!(error(&Tensor::cat(&pieces, 0).unwrap(), &whole).unwrap() < 1e-6);
}

#[test]
fn narrow_adapters_agree_with_wide_ones() {
    let config = all();
    let (model, weights, shard) = setup(&config);
    let narrow = weights.iter().map(|(name, w)| (name.clone(), w.to_dtype(DType::BF16).unwrap()));
    let narrow: Weights = narrow.collect();
    let [wide, found] = [&weights, &narrow].map(|weights| loss(&model, weights, &shard));
    let off = error(&found, &wide).unwrap();
    assert!(off < 2e-2, "{off:e}");
}
