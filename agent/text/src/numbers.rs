//! Numbers and sentences for people, at most 80 columns wide.

/// A number with about three digits that matter.
#[must_use]
pub fn three(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// A time given in microseconds.
#[must_use]
pub fn micros(us: f64) -> String {
    if us >= 1e3 {
        format!("{} ms", three(us / 1e3))
    } else {
        format!("{us:.0} us")
    }
}

/// A whole number in groups of three digits.
#[must_use]
pub fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut grouped = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// `text` in lines of at most `width` columns.
#[must_use]
pub fn wrapped(text: &str, width: usize) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in text.split_whitespace() {
        if column > 0 && column + 1 + word.len() > width {
            out.push('\n');
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += word.len();
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(thousands(0.4), "0");
        assert_eq!(thousands(999.0), "999");
        assert_eq!(thousands(31_400.2), "31,400");
        assert_eq!(thousands(1_234_567.0), "1,234,567");
    }
}
