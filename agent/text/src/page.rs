//! What the HTML pages of replay and of the bench are made of: one file, nothing is fetched, no script runs.

use std::fmt::Write as _;

use crate::svg::escaped;

const STYLE: &str = include_str!("style.css");

/// The whole page around `body`.
#[must_use]
pub fn whole(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{}</title>\n<style>\n{STYLE}</style></head>\n<body><main>\n{body}\
         </main></body></html>\n",
        escaped(title),
    )
}

/// A part of the page under a heading.
pub fn section(body: &mut String, title: &str, content: &str) {
    let _ = writeln!(
        body,
        "<section><h2>{}</h2>\n{content}</section>",
        escaped(title)
    );
}

/// Figures that stand out: what each is, and its value.
pub fn cards(body: &mut String, cards: &[(&str, String)]) {
    body.push_str("<div class=\"cards\">");
    for (what, figure) in cards {
        let _ = write!(body, "<div><b>{figure}</b><span>{what}</span></div>");
    }
    body.push_str("</div>\n");
}

/// Names and values, a line each.
pub fn facts<N: AsRef<str>>(body: &mut String, facts: &[(N, String)]) {
    body.push_str("<dl>");
    for (name, value) in facts {
        let _ = write!(
            body,
            "<div><dt>{}</dt><dd>{}</dd></div>",
            escaped(name.as_ref()),
            escaped(value)
        );
    }
    body.push_str("</dl>\n");
}

/// A drawing with its title and what it shows.
#[must_use]
pub fn plot(title: &str, what: &str, svg: &str) -> String {
    format!("<figure><figcaption><b>{title}</b> {what}</figcaption>{svg}</figure>\n")
}

/// Drawings in two columns where there is room.
#[must_use]
pub fn side_by_side(plots: &[String]) -> String {
    format!("<div class=\"grid2\">{}</div>\n", plots.concat())
}
