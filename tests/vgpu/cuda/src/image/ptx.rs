//! PTX text: `.entry` names, their `.param` lists, and module-scope `.global`/`.const` variables.

use super::content::{Image, KernelImage, Param, Variable};

/// Reads PTX; `None` without a `.version`, which every PTX text begins with.
pub fn parse(text: &str) -> Option<Image> {
    let text = without_comments(text);
    if !text.contains(".version") {
        return None;
    }
    let mut image = Image::default();
    let mut depth = 0_usize;
    let mut statement = String::new();
    for c in text.chars() {
        match c {
            '{' => {
                if depth == 0 {
                    kernel(&statement, &mut image)?;
                    // An initialised variable goes on behind its braces; a function does not.
                    if !statement.contains('=') {
                        statement.clear();
                    }
                }
                depth += 1;
            }
            '}' => depth = depth.checked_sub(1)?,
            ';' if depth == 0 => {
                kernel(&statement, &mut image)?;
                variable(&statement, &mut image);
                statement.clear();
            }
            _ if depth == 0 => statement.push(c),
            _ => {}
        }
    }
    (depth == 0).then_some(image)
}

fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        out.push_str(&rest[..at]);
        let tail = &rest[at..];
        rest = if tail.starts_with("//") {
            tail.find('\n').map_or("", |end| &tail[end..])
        } else if tail.starts_with("/*") {
            tail.find("*/").map_or("", |end| &tail[end + 2..])
        } else {
            out.push('/');
            &tail[1..]
        };
    }
    out.push_str(rest);
    out
}

/// Adds the kernel that `statement` heads, if it heads one; `None` for a broken one.
fn kernel(statement: &str, image: &mut Image) -> Option<()> {
    let Some((_, head)) = statement.split_once(".entry") else {
        return Some(());
    };
    let name: String = head
        .trim_start()
        .chars()
        .take_while(|c| is_name(*c))
        .collect();
    let mut params = Vec::new();
    let mut end = 0_usize;
    if let Some((_, list)) = head.split_once('(') {
        let (list, _) = list.split_once(')')?;
        for declaration in list.split(',').filter(|d| !d.trim().is_empty()) {
            let (size, alignment) = size_of(declaration)?;
            let offset = end.next_multiple_of(alignment);
            params.push(Param { offset, size });
            end = offset + size;
        }
    }
    if name.is_empty() {
        return None;
    }
    if image.kernels.iter().all(|known| known.name != name) {
        image.kernels.push(KernelImage { name, params });
    }
    Some(())
}

/// Adds the variable that `statement` defines, if it defines one.
fn variable(statement: &str, image: &mut Image) {
    let is_variable = [".global", ".const"]
        .iter()
        .any(|space| statement.contains(space));
    let declaration = statement.split('=').next().unwrap_or_default();
    if !is_variable || statement.contains(".extern") {
        return;
    }
    let name = declaration
        .split_whitespace()
        .next_back()
        .unwrap_or_default();
    let name = name.split('[').next().unwrap_or_default();
    if let (Some((bytes, _)), false) = (size_of(declaration), name.is_empty()) {
        image.variables.push(Variable {
            name: name.to_owned(),
            bytes,
        });
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.' | '@')
}

/// Bytes and alignment of what a declaration such as `.param .align 8 .b8 x[16]` declares.
fn size_of(declaration: &str) -> Option<(usize, usize)> {
    let spaced = declaration.replace('[', " [");
    let mut words = spaced.split_whitespace().peekable();
    let (mut element, mut vector, mut alignment, mut count) = (None, 1, 0, 1);
    while let Some(word) = words.next() {
        match word {
            ".align" => {
                let next: usize = words.next()?.parse().ok()?;
                // `.ptr .align N` speaks of what the pointer points to.
                if alignment == 0 && element.is_none() {
                    alignment = next;
                }
            }
            ".v2" => vector = 2,
            ".v4" => vector = 4,
            ".b8" | ".u8" | ".s8" => element = Some(1),
            ".b16" | ".u16" | ".s16" | ".f16" => element = Some(2),
            ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" => element = Some(4),
            ".b64" | ".u64" | ".s64" | ".f64" => element = Some(8),
            ".b128" => element = Some(16),
            _ => {
                if let Some(length) = word.strip_prefix('[') {
                    count *= length.trim_end_matches(']').trim().parse().unwrap_or(1);
                }
            }
        }
    }
    let size = element? * vector;
    Some((size * count, alignment.max(size)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(list: &str) -> Vec<(usize, usize)> {
        let text = format!(".version 8.0\n.visible .entry k({list})\n{{ ret; }}");
        let image = parse(&text).expect("valid");
        image.kernels[0]
            .params
            .iter()
            .map(|p| (p.offset, p.size))
            .collect()
    }

    #[test]
    fn parameters_lie_at_their_own_alignment() {
        assert_eq!(params(""), []);
        assert_eq!(
            params(".param .u64 a, .param .u32 b, .param .f64 c"),
            [(0, 8), (8, 4), (16, 8)]
        );
        assert_eq!(
            params(".param .u8 a, .param .align 16 .b8 b[20], .param .u16 c"),
            [(0, 1), (16, 20), (36, 2)]
        );
    }

    #[test]
    fn a_pointer_parameters_alignment_is_not_its_targets() {
        assert_eq!(
            params(".param .u32 a, .param .u64 .ptr .global .align 256 b"),
            [(0, 4), (8, 8)]
        );
    }

    #[test]
    fn all_entries_are_found_and_functions_are_not() {
        let text = "// .entry comment()\n.version 8.0\n.target sm_90\n.address_size 64\n\
            .func helper(.param .u64 x) { ret; }\n\
            .visible .entry first() .maxntid 256, 1, 1 { .reg .b32 %r<4>; { ret; } }\n\
            /* .entry hidden() */ .entry second (\n .param .u64 second_param_0 // why\n) { ret; }";
        let image = parse(text).expect("valid");
        let names: Vec<_> = image.kernels.iter().map(|k| k.name.as_str()).collect();
        assert_eq!(names, ["first", "second"]);
    }

    #[test]
    fn variables_have_their_sizes() {
        let text = ".version 8.0\n.visible .global .align 4 .u32 counter;\n\
            .const .align 8 .b8 table[24] = {1, 2, 3};\n.extern .shared .b8 smem[];\n";
        let image = parse(text).expect("valid");
        let found: Vec<_> = image
            .variables
            .iter()
            .map(|v| (v.name.as_str(), v.bytes))
            .collect();
        assert_eq!(found, [("counter", 4), ("table", 24)]);
    }

    #[test]
    fn broken_text_is_refused() {
        assert_eq!(parse("hello"), None);
        assert_eq!(parse(".version 8.0 .entry k( { "), None);
        assert_eq!(parse(".version 8.0 .entry k() { ret; "), None);
    }
}
