//! A check on shapes: in every form of the key/value cache but one, none may change from step to step.

use crate::graph::{Dim, Function, Module, Node};
use crate::passes::KvForm;
use crate::{Error, Result};

/// Refuses a function with a shape that can change from step to step, unless the form is `dynamic`.
///
/// # Errors
/// When there is one.
pub(super) fn check(module: &Module, form: KvForm) -> Result<()> {
    if form == KvForm::Dynamic {
        return Ok(());
    }
    module.entries().try_for_each(|function| check_function(function, form))
}

fn check_function(function: &Function, form: KvForm) -> Result<()> {
    let changes = |node: &&Node| node.ty.shape.iter().any(|dim| matches!(dim, Dim::Symbol(_)));
    let Some(node) = function.nodes.iter().find(changes) else { return Ok(()) };
    let error = Error::input("a shape can change from step to step").at(format!("function `{}`", function.name));
    let error = error.found(&node.ty).expected(format!("fixed shapes in the form `{form}` of the key/value cache"));
    Err(error.hint("only `--kv dynamic` has shapes that change"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ElementType;
    use crate::graph::{Builder, FunctionRole, Symbol, TensorType};

    fn module(extent: Dim) -> Module {
        let mut module = Module::default();
        let mut b = Builder::new("main", FunctionRole::Entry, &mut module.weights);
        let x = b.input("x", TensorType { element: ElementType::F16, shape: vec![Dim::Fixed(1), extent] });
        b.result("y", x);
        let function = b.finish().unwrap();
        module.functions.push(function);
        module
    }

    #[test]
    fn shapes_that_change_are_for_the_form_dynamic_alone() {
        let changing = module(Dim::Symbol(Symbol::new("total", 1, 64)));
        for form in KvForm::ALL {
            check(&module(Dim::Fixed(64)), form).unwrap();
            let checked = check(&changing, form);
            assert_eq!(checked.is_ok(), form == KvForm::Dynamic, "{form}");
        }
        let error = check(&changing, KvForm::Blend).unwrap_err();
        let sentence = error.to_string();
        assert!(sentence.starts_with("function `main`: a shape can change from step to step: found f16[1,"), "{error}");
        assert!(sentence.ends_with("expected fixed shapes in the form `blend` of the key/value cache"), "{error}");
    }
}
