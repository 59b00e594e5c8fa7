# Shared by the recipes; to be sourced. Makes or finds an environment in which nmtgrid runs.
#
# PYTHON        the interpreter to make an environment with (default: python3)
# NMTGRID_VENV  an environment to use, or to make, instead of .venv in the project's folder
#
# Without NMTGRID_VENV an environment that is active already is used as it is.

PROJECT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
DRY_RUN=${DRY_RUN:-0}
# Spelt so and installed alone: another spelling may pull gigabytes of GPU libraries.
TORCH="torch==2.13.0"

say() { printf '%s\n' "$*"; }

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 2
}

# Print a command and, unless this is a dry run, run it.
run() {
    printf '$'
    printf ' %s' "$@"
    printf '\n'
    if [ "$DRY_RUN" = 0 ]; then "$@"; fi
}

nmtgrid() { python -m nmtgrid "$@"; }

# Print what `pyproject.toml` asks for (with the extra $1, if any) that is not installed.
missing_packages() {
    python - "$PROJECT/pyproject.toml" "${1:-}" <<'END'
import re, sys, tomllib
from importlib.metadata import PackageNotFoundError, version

project = tomllib.load(open(sys.argv[1], "rb"))["project"]
wanted = project["dependencies"] + project["optional-dependencies"].get(sys.argv[2], [])
for name in (re.split(r"[<>=~!; \[]", text)[0] for text in wanted):
    try:
        version(name)
    except PackageNotFoundError:
        print(name)
END
}

# Activate an environment that holds all that nmtgrid (and the extra $1) needs.
environment() {
    local extra="${1:-}" folder="${NMTGRID_VENV:-}" missing
    local pins=()
    if [ "$DRY_RUN" != 0 ]; then return; fi
    if [ -z "$folder" ] && [ -z "${VIRTUAL_ENV:-}" ]; then folder="$PROJECT/.venv"; fi
    if [ -n "$folder" ]; then
        if [ ! -x "$folder/bin/python" ]; then
            check_python "${PYTHON:-python3}"
            run "${PYTHON:-python3}" -m venv "$folder"
        fi
        export VIRTUAL_ENV="$(cd "$folder" && pwd)"
        export PATH="$VIRTUAL_ENV/bin:$PATH"
        hash -r
        pins=(-c "$PROJECT/constraints.txt")
    fi
    check_python python
    missing="$(missing_packages "$extra")"
    if grep -qx torch <<<"$missing"; then run python -m pip install -q "$TORCH"; fi
    if [ -n "$missing" ]; then
        run python -m pip install -q "${pins[@]}" -e "$PROJECT${extra:+[$extra]}"
    fi
    # This checkout is what runs, also in an environment that holds another one.
    export PYTHONPATH="$PROJECT${PYTHONPATH:+:$PYTHONPATH}"
    say "Using $(command -v python) ($(python --version))"
}

check_python() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
        fail "\`$1\` is no Python 3.11 or later. Name one: PYTHON=/path/to/python3.11 bash $0"
}

# Fetch the address $1 into the file $2, unless it is there already.
fetch() {
    if [ -s "$2" ]; then
        say "$2 is there already."
    elif [ "$DRY_RUN" != 0 ]; then
        say "\$ download $1 to $2"
    else
        mkdir -p "$(dirname "$2")"
        say "Downloading $1"
        curl -fsSL --retry 3 -o "$2.part" "$1" || fail "$1 could not be downloaded. \
Fetch it in another way and put it at $2, or set NMTGRID_DATA to a folder that has the data."
        mv "$2.part" "$2"
    fi
}

# Set TEXT to a folder with Multi30k's {train,valid,test}.{de,en}: that of NMTGRID_DATA, or $1, into
# which the public files are downloaded.
multi30k_text() {
    local language address=https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw
    if [ -n "${NMTGRID_DATA:-}" ]; then
        TEXT="$NMTGRID_DATA/multi30k"
        [ -d "$TEXT" ] || [ "$DRY_RUN" = 1 ] || fail "NMTGRID_DATA has no folder multi30k: $TEXT"
        return
    fi
    TEXT="$1"
    for language in de en; do
        fetch "$address/train.$language.gz" "$TEXT/train.$language.gz"
        fetch "$address/val.$language.gz" "$TEXT/valid.$language.gz"
        fetch "$address/test_2016_flickr.$language.gz" "$TEXT/test.$language.gz"
    done
}

# Make the dataset $1 of Multi30k De-En, lower-cased, 8,000 joint merges, unless it is there;
# texts that are downloaded go to $2. No pair is filtered out.
multi30k_dataset() {
    multi30k_text "$2"
    if [ -e "$1/bpe.codes" ]; then return; fi
    run nmtgrid preprocess --source-lang de --target-lang en --lowercase --max-ratio 9 \
        --overwrite --workers 0 \
        --train "$TEXT/train" --valid "$TEXT/valid" --test "$TEXT/test" --out "$1"
    run nmtgrid bpe learn "$1" --merges 8000 --joint
}

# Make the dataset $1 of the embedded toy corpus, unless it is there.
toy_dataset() {
    if [ -e "$1/bpe.codes" ]; then return; fi
    run nmtgrid preprocess --toy 10000 --overwrite --out "$1"
    run nmtgrid bpe learn "$1" --merges 700 --separate
}

# The same in words, unless it is there.
toy_words_dataset() {
    if [ -e "$1/vocab.qa.txt" ]; then return; fi
    run nmtgrid preprocess --toy 10000 --overwrite --out "$1"
    run nmtgrid bpe learn "$1" --words --min-count 1
}

# Set TEXT to the folder $1 of NMTGRID_DATA; return 1 where there is no NMTGRID_DATA.
own_text() {
    [ -n "${NMTGRID_DATA:-}" ] || return 1
    TEXT="$NMTGRID_DATA/$1"
    [ -d "$TEXT" ] || [ "$DRY_RUN" != 0 ] || fail "NMTGRID_DATA has no folder $1: $TEXT"
}

# Make the dataset $3 of IWSLT'14 from language $1 to language $2 (de, en), lower-cased, 10,000 joint
# merges, unless it is there; the public archive goes to $4. With NMTGRID_DATA the texts are
# iwslt14.de-en/{train,valid,test}.{de,en}[.xz], tokenised, with bpe10k.codes[.xz].
iwslt14_dataset() {
    local name read units codes
    local address=http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz
    if own_text iwslt14.de-en; then
        codes="$TEXT/bpe10k.codes"
        [ -f "$codes" ] || codes="$codes.xz"
        read=(--tokenize none --train "$TEXT/train" --valid "$TEXT/valid" --test "$TEXT/test")
        units=(--codes "$codes")
    else
        fetch "$address" "$4/de-en.tgz"
        run tar -xzf "$4/de-en.tgz" -C "$4"
        read=(--xml --lowercase --valid-every 23 --train "$4/de-en/train.tags.de-en")
        for name in TED.dev2010 TEDX.dev2012 TED.tst2010 TED.tst2011 TED.tst2012; do
            read+=(--test "$4/de-en/IWSLT14.$name.de-en")
        done
        units=(--merges 10000 --joint)
    fi
    if [ -e "$3/bpe.codes" ]; then return; fi
    run nmtgrid preprocess --source-lang "$1" --target-lang "$2" "${read[@]}" \
        --max-words 175 --max-ratio 1.5 --overwrite --workers 0 --out "$3"
    run nmtgrid bpe learn "$3" "${units[@]}"
}

# Make the dataset $3 of IWSLT'15 from language $1 to language $2 (en, vi), tokenised by its makers,
# words that come five times or more, unless it is there; the public texts go to $4. With
# NMTGRID_DATA they are iwslt15.en-vi/{train,valid,test}.{en,vi}[.xz].
iwslt15_dataset() {
    local language address=https://nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi
    if ! own_text iwslt15.en-vi; then
        TEXT="$4"
        for language in en vi; do
            fetch "$address/train.$language" "$TEXT/train.$language"
            fetch "$address/tst2012.$language" "$TEXT/valid.$language"
            fetch "$address/tst2013.$language" "$TEXT/test.$language"
        done
    fi
    if [ -e "$3/vocab.$1.txt" ]; then return; fi
    run nmtgrid preprocess --source-lang "$1" --target-lang "$2" --tokenize none --max-ratio 9 \
        --train "$TEXT/train" --valid "$TEXT/valid" --test "$TEXT/test" \
        --overwrite --workers 0 --out "$3"
    run nmtgrid bpe learn "$3" --words --min-count 5
}

# Make the dataset $1 of WMT'15 De-En with 32,000 joint merges and one vocabulary, unless it is
# there, from NMTGRID_DATA's wmt15.de-en/{train,newstest2013,newstest2015}.{de,en}.
wmt15_dataset() {
    own_text wmt15.de-en || fail "set NMTGRID_DATA to a folder with \
wmt15.de-en/{train,newstest2013,newstest2015}.{de,en}: Europarl v7, Common Crawl and News Commentary \
v10 in one file, and the test sets, from https://www.statmt.org/wmt15/translation-task.html"
    if [ -e "$1/bpe.codes" ]; then return; fi
    run nmtgrid preprocess --source-lang de --target-lang en --max-words 175 --max-ratio 1.5 \
        --train "$TEXT/train" --valid "$TEXT/newstest2013" --test "$TEXT/newstest2015" \
        --overwrite --workers 0 --out "$1"
    run nmtgrid bpe learn "$1" --merges 32000 --joint-vocabulary
}

# Make the dataset $2 of the corpus $1, unless it is there; texts that are downloaded go to $3.
dataset() {
    case "$1" in
    toy) toy_dataset "$2" ;;
    toy-words) toy_words_dataset "$2" ;;
    multi30k) multi30k_dataset "$2" "$3" ;;
    iwslt14-de-en) iwslt14_dataset de en "$2" "$3" ;;
    iwslt14-en-de) iwslt14_dataset en de "$2" "$3" ;;
    iwslt15-en-vi) iwslt15_dataset en vi "$2" "$3" ;;
    iwslt15-vi-en) iwslt15_dataset vi en "$2" "$3" ;;
    wmt15-de-en) wmt15_dataset "$2" ;;
    *) fail "there is no corpus $1: toy toy-words multi30k iwslt14-de-en iwslt14-en-de iwslt15-en-vi \
iwslt15-vi-en wmt15-de-en" ;;
    esac
}

# Print the preset for the corpus $1: both directions have one.
preset_of() {
    case "$1" in
    iwslt14-*) say iwslt14-de-en ;;
    iwslt15-*) say iwslt15-en-vi ;;
    toy-words) say toy ;;
    *) say "$1" ;;
    esac
}
