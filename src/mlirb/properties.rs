//! Which inherent attributes each operation has, in the order they are stored: alphabetical.

use super::names;

/// One inherent attribute of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PropertyField {
    /// Its name.
    pub name: &'static str,
    /// Whether it may be absent.
    pub optional: bool,
}

const fn required(name: &'static str) -> PropertyField {
    PropertyField { name, optional: false }
}

const fn optional(name: &'static str) -> PropertyField {
    PropertyField { name, optional: true }
}

/// The fields of `operation`; `None` when it is not known to have any.
#[must_use]
pub fn property_fields(operation: &str) -> Option<&'static [PropertyField]> {
    const ASSET: &[PropertyField] = &[optional("reserved"), optional("version")];
    const GRAPH: &[PropertyField] = &[
        required("argAttrs"),
        optional("compositeDecl"),
        required("externalize"),
        required("functionType"),
        required("isPrivate"),
        required("name"),
        required("noInline"),
        required("paramDecls"),
        required("resAttrs"),
    ];
    const INVOKE: &[PropertyField] = &[required("arg_attrs"), required("callee"), required("res_attrs")];
    const CONSTANT: &[PropertyField] = &[required("value")];
    const GELU: &[PropertyField] = &[required("approximate")];
    const PAD: &[PropertyField] = &[required("padding_mode")];
    const SCAN: &[PropertyField] = &[required("combiner")];
    const MODE: &[PropertyField] = &[required("mode")];
    const METAL_KERNEL: &[PropertyField] = &[required("kernel_name"), required("kernel_source")];
    Some(match operation {
        names::ASSET => ASSET,
        names::GRAPH => GRAPH,
        names::INVOKE => INVOKE,
        names::CONSTANT => CONSTANT,
        "primitive.gelu_v1" => GELU,
        "primitive.pad_v1" => PAD,
        "primitive.scan_v1" => SCAN,
        "primitive.scatter_along_axis_v1" => MODE,
        "primitive.interpolate_v1" => MODE,
        "metal.metal4_kernel_v1" => METAL_KERNEL,
        _ => return None,
    })
}
