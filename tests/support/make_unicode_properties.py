"""Writes csrc/automata/unicode_properties.inc: the scripts and the binary properties of
ECMA-262, as ``node`` knows them.

    PYTHONPATH=tests python -m support.make_unicode_properties

A set is a text of numbers: the distances between the bounds of its ranges, of which the
first one begins a range. A number has five bits a character, the lowest ones first: the
last character is "]" plus its bits, those before it are "0" plus theirs. A script has a
second set of bounds: those by which Script_Extensions differs, in one or the other.
"""

from __future__ import annotations

import json
import subprocess
from itertools import pairwise

from support.locations import ROOT

WIDTH = 112

# Table 69 of ECMA-262, without Any, ASCII and Assigned.
BINARY_PROPERTIES = """
ASCII_Hex_Digit/AHex Alphabetic/Alpha Bidi_Control/Bidi_C Bidi_Mirrored/Bidi_M Case_Ignorable/CI Cased
Changes_When_Casefolded/CWCF Changes_When_Casemapped/CWCM Changes_When_Lowercased/CWL
Changes_When_NFKC_Casefolded/CWKCF Changes_When_Titlecased/CWT Changes_When_Uppercased/CWU Dash
Default_Ignorable_Code_Point/DI Deprecated/Dep Diacritic/Dia Emoji Emoji_Component/EComp Emoji_Modifier/EMod
Emoji_Modifier_Base/EBase Emoji_Presentation/EPres Extended_Pictographic/ExtPict Extender/Ext
Grapheme_Base/Gr_Base Grapheme_Extend/Gr_Ext Hex_Digit/Hex IDS_Binary_Operator/IDSB IDS_Trinary_Operator/IDST
ID_Continue/IDC ID_Start/IDS Ideographic/Ideo Join_Control/Join_C Logical_Order_Exception/LOE Lowercase/Lower
Math Noncharacter_Code_Point/NChar Pattern_Syntax/Pat_Syn Pattern_White_Space/Pat_WS Quotation_Mark/QMark
Radical Regional_Indicator/RI Sentence_Terminal/STerm Soft_Dotted/SD Terminal_Punctuation/Term
Unified_Ideograph/UIdeo Uppercase/Upper Variation_Selector/VS White_Space/space XID_Continue/XIDC XID_Start/XIDS
""".split()

# PropertyValueAliases.txt of Unicode 17.
SCRIPTS = """
Adlm/Adlam Aghb/Caucasian_Albanian Ahom Arab/Arabic Armi/Imperial_Aramaic Armn/Armenian Avst/Avestan
Bali/Balinese Bamu/Bamum Bass/Bassa_Vah Batk/Batak Beng/Bengali Berf/Beria_Erfe Bhks/Bhaiksuki Bopo/Bopomofo
Brah/Brahmi Brai/Braille Bugi/Buginese Buhd/Buhid Cakm/Chakma Cans/Canadian_Aboriginal Cari/Carian Cham
Cher/Cherokee Chrs/Chorasmian Copt/Coptic/Qaac Cpmn/Cypro_Minoan Cprt/Cypriot Cyrl/Cyrillic Deva/Devanagari
Diak/Dives_Akuru Dogr/Dogra Dsrt/Deseret Dupl/Duployan Egyp/Egyptian_Hieroglyphs Elba/Elbasan Elym/Elymaic
Ethi/Ethiopic Gara/Garay Geor/Georgian Glag/Glagolitic Gong/Gunjala_Gondi Gonm/Masaram_Gondi Goth/Gothic
Gran/Grantha Grek/Greek Gujr/Gujarati Gukh/Gurung_Khema Guru/Gurmukhi Hang/Hangul Hani/Han Hano/Hanunoo
Hatr/Hatran Hebr/Hebrew Hira/Hiragana Hluw/Anatolian_Hieroglyphs Hmng/Pahawh_Hmong Hmnp/Nyiakeng_Puachue_Hmong
Hung/Old_Hungarian Ital/Old_Italic Java/Javanese Kali/Kayah_Li Kana/Katakana Kawi Khar/Kharoshthi Khmr/Khmer
Khoj/Khojki Kits/Khitan_Small_Script Knda/Kannada Krai/Kirat_Rai Kthi/Kaithi Lana/Tai_Tham Laoo/Lao Latn/Latin
Lepc/Lepcha Limb/Limbu Lina/Linear_A Linb/Linear_B Lisu Lyci/Lycian Lydi/Lydian Mahj/Mahajani Maka/Makasar
Mand/Mandaic Mani/Manichaean Marc/Marchen Medf/Medefaidrin Mend/Mende_Kikakui Merc/Meroitic_Cursive
Mero/Meroitic_Hieroglyphs Mlym/Malayalam Modi Mong/Mongolian Mroo/Mro Mtei/Meetei_Mayek Mult/Multani
Mymr/Myanmar Nagm/Nag_Mundari Nand/Nandinagari Narb/Old_North_Arabian Nbat/Nabataean Newa Nkoo/Nko Nshu/Nushu
Ogam/Ogham Olck/Ol_Chiki Onao/Ol_Onal Orkh/Old_Turkic Orya/Oriya Osge/Osage Osma/Osmanya Ougr/Old_Uyghur
Palm/Palmyrene Pauc/Pau_Cin_Hau Perm/Old_Permic Phag/Phags_Pa Phli/Inscriptional_Pahlavi Phlp/Psalter_Pahlavi
Phnx/Phoenician Plrd/Miao Prti/Inscriptional_Parthian Rjng/Rejang Rohg/Hanifi_Rohingya Runr/Runic
Samr/Samaritan Sarb/Old_South_Arabian Saur/Saurashtra Sgnw/SignWriting Shaw/Shavian Shrd/Sharada Sidd/Siddham
Sidt/Sidetic Sind/Khudawadi Sinh/Sinhala Sogd/Sogdian Sogo/Old_Sogdian Sora/Sora_Sompeng Soyo/Soyombo
Sund/Sundanese Sunu/Sunuwar Sylo/Syloti_Nagri Syrc/Syriac Tagb/Tagbanwa Takr/Takri Tale/Tai_Le
Talu/New_Tai_Lue Taml/Tamil Tang/Tangut Tavt/Tai_Viet Tayo/Tai_Yo Telu/Telugu Tfng/Tifinagh Tglg/Tagalog
Thaa/Thaana Thai Tibt/Tibetan Tirh/Tirhuta Tnsa/Tangsa Todr/Todhri Tols/Tolong_Siki Toto Tutg/Tulu_Tigalari
Ugar/Ugaritic Vaii/Vai Vith/Vithkuqi Wara/Warang_Citi Wcho/Wancho Xpeo/Old_Persian Xsux/Cuneiform Yezi/Yezidi
Yiii/Yi Zanb/Zanabazar_Square Zinh/Inherited/Qaai Zyyy/Common Zzzz/Unknown
""".split()

# Prints the bounds of each class that node knows, a list each.
PROGRAM = """
const names = JSON.parse(require("fs").readFileSync(0, "utf8")), found = {};
for (const name of names) {
  let expression;
  try { expression = new RegExp(`\\\\p{${name}}`, "u"); } catch { continue; }
  const bounds = [];
  let before = false;
  for (let code = 0; code <= 0x10FFFF; ++code) {
    const is_in = expression.test(String.fromCodePoint(code));
    if (is_in !== before) bounds.push(code);
    before = is_in;
  }
  found[name] = bounds;
}
console.log(JSON.stringify(found));
"""


def bounds_of(names: list[str]) -> dict[str, list[int]]:
    """Where the ranges of each class of node begin, and where they have ended."""
    run = subprocess.run(["node", "-e", PROGRAM], input=json.dumps(names), capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def packed(bounds: list[int]) -> str:
    characters = []
    for before, bound in pairwise([0, *bounds]):
        distance = bound - before
        while distance >= 32:
            characters.append(chr(ord("0") + distance % 32))
            distance //= 32
        characters.append(chr(ord("]") + distance))
    return "".join(characters)


def literal(text: str) -> str:
    parts = [text[i : i + WIDTH] for i in range(0, len(text), WIDTH)] or [""]
    return "\n    ".join(f'"{part}"' for part in parts)


def entries() -> list[str]:
    binary = {names: names.split("/")[0] for names in BINARY_PROPERTIES}
    scripts = {names: names.split("/")[0] for names in SCRIPTS}
    prefixed = [f"{kind}={script}" for script in scripts.values() for kind in ("sc", "scx")]
    bounds = bounds_of([*binary.values(), *prefixed])
    lines = [f'{{"/{names}/", false,\n    {literal(packed(bounds[name]))}, ""}},\n' for names, name in binary.items()]
    for names, name in scripts.items():
        of_script = bounds[f"sc={name}"]
        difference = sorted(set(of_script) ^ set(bounds[f"scx={name}"]))
        texts = f"{literal(packed(of_script))},\n    {literal(packed(difference))}"
        lines.append(f'{{"/{names}/", true,\n    {texts}}},\n')
    return lines


def main() -> None:
    header = "// Made by tests/support/make_unicode_properties.py.\n// clang-format off\n"
    (ROOT / "csrc" / "automata" / "unicode_properties.inc").write_text(header + "".join(entries()))


if __name__ == "__main__":
    main()
