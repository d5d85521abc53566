//! Each form on a small decoder: the text of the function that decodes, and the same numbers as before.

use super::*;
use crate::graph::{Builder, FunctionRole, Symbol};
use crate::passes::{Externalize, run_proved};

const LENGTH: usize = 8;

/// How many tokens a function is fed, and from where on.
#[derive(Clone, Copy)]
enum Fed {
    /// So many, from position 0.
    Prompt(usize),
    /// So many, from a position that is an input.
    Tokens(usize),
    /// As many as the host likes, likewise.
    Any,
}

/// A decoder of two layers, which attends with two heads to one that it has appended.
fn decoder(name: &str, fed: Fed, window: Option<Window>, module: &mut Module) {
    let mut b = Builder::new(name, FunctionRole::Entry, &mut module.weights);
    let n = match fed {
        Fed::Prompt(n) | Fed::Tokens(n) => Dim::Fixed(n),
        Fed::Any => Dim::Symbol(Symbol::new("query", 1, LENGTH)),
    };
    let columns = |b: &mut Builder<'_>, name: &str, heads: usize| {
        let shape = vec![Dim::Fixed(1), Dim::Fixed(heads), n.clone(), Dim::Fixed(2)];
        b.input(name, TensorType { element: ElementType::F32, shape })
    };
    let (q, k, v) = (columns(&mut b, "q", 2), columns(&mut b, "k", 1), columns(&mut b, "v", 1));
    let start = match fed {
        Fed::Prompt(_) => b.integers(&[1], &[0]),
        _ => b.input("pos", TensorType::new(ElementType::I32, &[1])),
    };
    let cache = TensorType::new(ElementType::F32, &[2, 1, 1, LENGTH, 2]);
    let (mut keys, mut values) = (b.state("keys", cache.clone()), b.state("values", cache));
    let mut x = q;
    for layer in 0..2 {
        keys = b.node(Op::KvAppend { layer }, &[keys, k, start]);
        values = b.node(Op::KvAppend { layer }, &[values, v, start]);
        let y = b.node(Op::CachedAttention { layer, window }, &[x, keys, values, start]);
        x = b.add(x, y);
    }
    b.result("y", x);
    b.state_result("keys", keys);
    b.state_result("values", values);
    module.functions.push(b.finish().unwrap());
    module.verify().unwrap();
}

fn one(fed: Fed, window: Option<Window>) -> Module {
    let mut module = Module::default();
    decoder("decode", fed, window, &mut module);
    module
}

/// Runs the pass and checks that the numbers stay.
fn after(mut module: Module, form: KvForm) -> Module {
    let entry = run_proved(&mut module, &StaticKv { form }).unwrap();
    assert!(matches!(entry.outcome, Outcome::Rewrote(_)), "{}", entry.outcome);
    assert!(entry.difference.unwrap() < 1e-6, "{form}: {:?}", entry.difference);
    module
}

#[test]
fn one_token_in_every_form() {
    for form in KvForm::ALL {
        let text = after(one(Fed::Tokens(1), None), form).text();
        insta::assert_snapshot!(format!("decode_{form}"), text);
    }
}

#[test]
fn every_form_keeps_the_numbers_of_every_kind_of_call() {
    // Noise puts the first token fed at position 1.
    let windows = [None, Some(Window { prefix: 1, span: 2 }), Some(Window { prefix: 4, span: 1 })];
    for (window, form) in windows.into_iter().flat_map(|window| KvForm::ALL.map(|form| (window, form))) {
        for fed in [Fed::Prompt(4), Fed::Prompt(1), Fed::Tokens(1), Fed::Tokens(3), Fed::Tokens(7)] {
            after(one(fed, window), form);
        }
    }
}

#[test]
fn any_number_of_tokens_has_a_form_or_is_refused() {
    for form in [KvForm::Indexed, KvForm::Dynamic, KvForm::Blend, KvForm::BlendWhole] {
        after(one(Fed::Any, None), form);
    }
    for form in [KvForm::Shift, KvForm::Host] {
        let error = run_proved(&mut one(Fed::Any, None), &StaticKv { form }).unwrap_err().to_string();
        assert!(error.contains("number of tokens chosen at run time"), "{form}: {error}");
    }
}

#[test]
fn functions_of_one_module_share_the_states_of_a_form() {
    for form in KvForm::ALL {
        let mut module = Module::default();
        decoder("prefill", Fed::Prompt(4), None, &mut module);
        decoder("decode", Fed::Tokens(1), None, &mut module);
        let module = after(module, form);
        let states = |index: usize| module.functions[index].states.iter().map(|state| state.name.clone());
        assert!(states(0).eq(states(1)), "{form}");
        assert_eq!(states(0).count(), if form == KvForm::Host { 0 } else { 2 }, "{form}");
    }
}

#[test]
fn attention_without_a_window_is_a_composite_where_the_keys_are_the_sequence() {
    let mut module = after(one(Fed::Tokens(1), None), KvForm::Dynamic);
    run_proved(&mut module, &Externalize).unwrap();
    insta::assert_snapshot!("decode_dynamic_externalised", module.text());
    let mut module = after(one(Fed::Any, None), KvForm::Dynamic);
    run_proved(&mut module, &Externalize).unwrap();
    insta::assert_snapshot!("any_dynamic_externalised", module.text());
}

#[test]
fn form_names_are_found_and_an_unknown_one_lists_them() {
    for form in KvForm::ALL {
        assert_eq!(form.name().parse::<KvForm>().unwrap(), form);
    }
    let error = "ring".parse::<KvForm>().unwrap_err().to_string();
    let expected = "unknown form of the key/value cache: found `ring`, expected one of `indexed`, `dynamic`, `blend`, \
                    `blend-whole`, `shift`, `host`";
    assert_eq!(error, expected);
}
