//! Signatures of kernels, read from their CUDA text and compared with their declarations. Needs no compiler.

mod preprocess;

use std::collections::BTreeMap;

use super::{DType, Kernel, Param, ParamKind, Source};

/// Differences between the declarations of `kernels` and their CUDA text: parameters by name, order and type, and
/// kernels that have no such text. Also the kernels of `sources` without a declaration among `kernels`. Empty if all match.
///
/// The text is preprocessed (macros are expanded) before its `extern "C" __global__` functions are read.
pub fn signature_problems(sources: &[&Source], kernels: &[&Kernel]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut read: BTreeMap<(&str, &str), BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for source in sources.iter().copied().chain(kernels.iter().map(|kernel| kernel.source)) {
        read.entry((source.file, source.text)).or_insert_with(|| match signatures(source.text) {
            Ok(found) => found,
            Err(problem) => {
                problems.push(format!("{}: {problem}", source.file));
                BTreeMap::new()
            }
        });
    }
    for kernel in kernels {
        let declared: Vec<String> = kernel.params.iter().map(cuda_parameter).collect();
        match read[&(kernel.source.file, kernel.source.text)].get(kernel.name) {
            None => problems.push(format!("{} has no kernel {}", kernel.source.file, kernel.name)),
            Some(written) => problems.extend(difference(kernel, &declared, written)),
        }
    }
    for source in sources {
        let declared = |name: &String| {
            let same = |kernel: &&Kernel| kernel.name == name && kernel.source.text == source.text;
            kernels.iter().copied().any(|kernel| same(&kernel))
        };
        let names = read[&(source.file, source.text)].keys();
        let undeclared = names.filter(|name| !declared(name));
        problems.extend(undeclared.map(|name| format!("{}: kernel {name} has no declaration", source.file)));
    }
    problems
}

/// What differs first.
fn difference(kernel: &Kernel, declared: &[String], written: &[String]) -> Option<String> {
    let at = (0..declared.len().max(written.len())).find(|&i| declared.get(i) != written.get(i))?;
    let show = |list: &[String]| list.get(at).map_or("nothing".to_owned(), |param| format!("`{param}`"));
    Some(format!(
        "{}: parameter {at} of {} is {} in the CUDA text, and {} in the declaration",
        kernel.source.file,
        kernel.name,
        show(written),
        show(declared)
    ))
}

/// A parameter as CUDA writes it.
fn cuda_parameter(param: &Param) -> String {
    let name = param.name;
    match param.kind {
        ParamKind::In(dtype) => format!("const {}* {name}", cuda_type(dtype)),
        ParamKind::Out(dtype) => format!("{}* {name}", cuda_type(dtype)),
        ParamKind::U32 => format!("u32 {name}"),
        ParamKind::U64 => format!("u64 {name}"),
        ParamKind::F32 => format!("f32 {name}"),
    }
}

fn cuda_type(dtype: DType) -> &'static str {
    match dtype {
        DType::U8 => "u8",
        DType::I16 => "i16",
        DType::I32 => "i32",
        DType::U32 => "u32",
        DType::U64 => "u64",
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::BF16 => "bf16",
    }
}

/// The parameters of every kernel in `text`, by its name.
fn signatures(text: &str) -> Result<BTreeMap<String, Vec<String>>, String> {
    let tokens = preprocess::preprocess(text)?;
    let mut found = BTreeMap::new();
    let mut rest = tokens.as_slice();
    while let Some(at) = rest.windows(3).position(|three| three == ["extern", "\"C\"", "__global__"]) {
        rest = &rest[at + 3..];
        let (name, params) = signature(rest).ok_or("a __global__ function that cannot be read")?;
        let params = params.split(|token| token == ",").filter(|param| !param.is_empty());
        found.insert(name.to_owned(), params.map(normal_parameter).collect());
    }
    Ok(found)
}

/// Name and parameters of the function that `tokens` starts with: after its result and attributes such as
/// `__launch_bounds__(256)`, the last name before a parenthesis that is followed by a body.
fn signature(tokens: &[String]) -> Option<(&str, &[String])> {
    let mut at = 0;
    loop {
        let open = at + tokens[at..].iter().position(|token| token == "(")?;
        let close = preprocess::closing(tokens, open)?;
        if tokens.get(close + 1).is_some_and(|token| token == "{") {
            return Some((&tokens[open.checked_sub(1)?], &tokens[open + 1..close]));
        }
        at = close + 1;
    }
}

/// A parameter in the form of [`cuda_parameter`]: without `__restrict__`, with our names for types.
fn normal_parameter(tokens: &[String]) -> String {
    let mut text = String::new();
    for token in tokens.iter().filter(|token| *token != "__restrict__") {
        let token = match token.as_str() {
            "float" => "f32",
            "double" => "f64",
            other => other,
        };
        if !text.is_empty() && token != "*" {
            text.push(' ');
        }
        text.push_str(token);
    }
    text
}

#[cfg(test)]
mod tests;
