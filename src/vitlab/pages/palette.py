"""The colors that every page and plot shares, on light and on dark ground.

Everything that is read stands out from what is behind it by a contrast of at least 4.5 (WCAG 2.2,
success criterion 1.4.3); blue and orange differ for the color-blind too.
"""

Theme = dict[str, str]

LIGHT: Theme = {
    "page": "#f8f7f4", "card": "#ffffff", "ink": "#1c1e22", "muted": "#5b616a", "line": "#dedbd4",
    "blue": "#0a4c8a", "warm": "#a84300",
}  # fmt: skip
DARK: Theme = {
    "page": "#111316", "card": "#191c20", "ink": "#e9e7e3", "muted": "#a4aab3", "line": "#343940",
    "blue": "#69abea", "warm": "#ee9a4d",
}  # fmt: skip
# Lines of several runs, light and dark: any two of a row look different under all three kinds of
# color blindness too (CIE76 distance of at least 30 in the model of Machado et al., 2009).
SERIES = (
    ("#0a4c8a", "#69abea"), ("#c25a00", "#ee9a4d"), ("#8c1ff9", "#c1fdb4"),
    ("#402637", "#c63968"), ("#a97970", "#d9bfcc"), ("#632303", "#9938fa"),
)  # fmt: skip
LIGHT |= {f"series{number}": light for number, (light, _) in enumerate(SERIES)}
DARK |= {f"series{number}": dark for number, (_, dark) in enumerate(SERIES)}
