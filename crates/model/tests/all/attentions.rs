//! Every layer has exactly one attention.

use std::sync::Arc;

use annulus_attention::Attention;
use annulus_comm::threads;
use annulus_model::Attentions;
use annulus_ops::Pool;
use annulus_ops::attention::Fused;
use annulus_sequence::{Heads, Mask, Setting, Strategy};

fn attention() -> Attention {
    let setting = Setting::new(Strategy::Local, 8, 1, Heads::equal(2));
    let schedules = Arc::new(setting.schedules(&Mask::causal()).unwrap());
    Attention::new(schedules, 1.0, threads::solo(), Arc::new(Fused::new(Pool::serial())))
}

#[test]
fn every_layer_has_one_attention() {
    let of = |lists: &[&[usize]]| {
        Attentions::new(3, lists.iter().map(|layers| (attention(), layers.to_vec())))
    };
    assert!(of(&[&[2, 0], &[1]]).is_ok());
    for (lists, wanted) in [
        (&[&[0, 1][..]][..], "none is for layer 2"),
        (&[&[0, 1, 2], &[1]], "layer 1 is listed twice"),
        (&[&[0, 1, 2, 3]], "found one for layer 3, expected layers below 3"),
        (&[], "found none, expected one for each of 3 layers"),
    ] {
        let why = of(lists).expect_err("refused").to_string();
        assert!(why.contains(wanted), "{why}");
    }
}
