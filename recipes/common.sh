# Functions shared by the recipes. Source this file before setting any default. It creates or finds an environment
# for nmtgrid, prepares corpora, and saves records of results.
#
# PYTHON        the interpreter that creates an environment (default: python3)
# NMTGRID_VENV  an environment to use, or to create, instead of .venv in the project's folder
# NMTGRID_DATA  a folder with corpora, read instead of downloading them
# CONFIG        a file for `nmtgrid train --config`, applied after the presets of a recipe
# RUNS          output folder (default: runs); with SMALL=1 its subfolder small
# SMALL=1       the whole experiment with tiny models of 40 updates (unless UPDATES or MINUTES is set), one
#               seed, greedy search: shows that it runs; scores mean nothing
#
# Without NMTGRID_VENV, an active virtual or conda environment is used; missing packages are
# installed into it.

say() { printf '%s\n' "$*"; }

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 2
}

# `--help` prints a recipe's head: what it does and its options. `--dry-run` may come anywhere.
DRY_RUN=${DRY_RUN:-0}
for argument in "$@"; do
    shift
    case "$argument" in
    -h | --help)
        sed -n '2,/^[^#]/{/^#SBATCH/!s/^# \{0,1\}//p}' "$0"
        exit
        ;;
    --dry-run) DRY_RUN=1 ;;
    *) set -- "$@" "$argument" ;;
    esac
done

PROJECT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

# How the recipe was called: the environment variables that it reads (except those for folders, parallelism and the
# like), its name, its arguments. Recipes that read a folder of the user add it themselves, as DATA=DIR.
INVOKED="" OWN="" READ_BY=("${BASH_SOURCE[@]}") RECIPE=("${BASH_SOURCE[-1]}")
# Recipes that source losses.sh also read its variables, and LOSS_name for the user's own losses.
if grep -q '^source .*/losses\.sh"$' "${READ_BY[-1]}"; then
    READ_BY+=("$PROJECT/recipes/losses.sh") RECIPE+=("$PROJECT/recipes/losses.sh") OWN='LOSS_.*'
fi
READ="$(grep -ohE '\$\{[A-Z][A-Z0-9_]*:?[-+]' "${READ_BY[@]}" | tr -d '${:+-')"
for variable in $(compgen -e | grep -xE -e "$READ" -e "$OWN"); do
    case "$variable" in
    DATA | TEACHER | DISTILLED | HERE | RUNS | JOBS | RESUME | RETRY | DRY_RUN | PYTHON* | NMTGRID_* | OMP_* | SLURM_*) continue ;;
    VIRTUAL_ENV | CONDA_PREFIX) continue ;;
    esac
    case "${!variable}" in
    "") ;;
    *[!a-zA-Z0-9_.,:/=-]*) INVOKED+="$variable=\"${!variable}\" " ;;
    *) INVOKED+="$variable=${!variable} " ;;
    esac
done
INVOKED+="bash recipes/$(basename "$0")${*:+ $*}"

# `check "NAME..." PATTERN WHAT`: fail if one of these variables does not match PATTERN.
check() {
    local name
    for name in $1; do
        [ -z "${!name:-}" ] || [[ "${!name}" =~ ^($2)$ ]] || fail "$name must be $3, not \`${!name}\`"
    done
}

# `choices NAME WORD...`: fail if the list NAME contains any other word, or a word twice.
choices() {
    local word
    for word in ${!1:-}; do
        [[ " ${*:2} " == *" $word "* ]] || fail "invalid $1: $word (choose from: ${*:2})"
    done
    no_repeats "$1"
}

# `no_repeats NAME`: fail if the list NAME contains a word twice.
no_repeats() {
    local word before=" "
    for word in ${!1:-}; do
        [[ "$before" != *" $word "* ]] || fail "$1 has $word twice: ${!1}"
        before+="$word "
    done
}

# `no_effect NAME [WHERE]`: fail if NAME is set: the record would suggest that it had an effect.
no_effect() { [ -z "${!1:-}" ] || fail "$1 has no effect here${2:+ $2}: see \`bash $0 --help\`"; }

# `uses NAME`: whether the recipe reads NAME with a default, or its head names it (a function of this file reads it).
uses() { grep -qE "\\$\{$1:?[-+]" "${RECIPE[@]}" || grep -qw "$1" < <(sed '/^[^#]/,$d' "${RECIPE[0]}"); }

ARCHITECTURES="pervasive pervasive-densenet transformer bilstm convs2s convrnn"
NATURAL='0|[1-9][0-9]*'
PERCENT='([1-9][0-9]?(\.[0-9]+)?|0?\.0*[1-9][0-9]*)'
check "SMALL RESUME RETRY ORIGINALS" "[01]" "0 or 1"
check "UPDATES TUNE_UPDATES JOBS SEED BEAM PAIRS TRAIN_PAIRS MERGES" "$NATURAL" "a whole number"
check "SEEDS BEAMS" "($NATURAL)( ($NATURAL))*" "one or several whole numbers with a space between them"
check "MINUTES TUNE_MINUTES START_MINUTES" "[0-9]+(\\.[0-9]+)?" "a number"
check ALLOW "$PERCENT( $PERCENT)*" "one or several numbers above 0 and below 100"
check CONFIDENCE "0?\\.0*[1-9][0-9]*" "a number above 0 and below 1"
check LABEL "[a-zA-Z0-9._+-]+" "a word of letters, digits and . _ + -"
[ -z "$(tr ' ' '\n' <<<"${SEEDS:-}" | sort | uniq -d)" ] || fail "SEEDS names a seed twice: $SEEDS"
for variable in ARCH ARCHS BEAM BEAMS CONFIG LABEL MERGES MINUTES ON PAIRS PRESET SEED SEEDS SETS TRAIN_PAIRS \
    UPDATES; do
    [ -z "${!variable:-}" ] || uses "$variable" || no_effect "$variable"
done

# The user's own PAIRS, before SMALL=1 sets a default.
PAIRS_ASKED="${PAIRS:-}"
SMALL="${SMALL:-0}"
RUNS="${RUNS:-runs}"
if [ "$SMALL" = 1 ]; then
    RUNS="$RUNS/small"
    if [ -z "${MINUTES:-}" ]; then UPDATES="${UPDATES:-40}"; fi
    SEEDS="${SEEDS:-${SEED:-1}}" BEAM="${BEAM:-1}" PAIRS="${PAIRS:-1000}"
fi
# In exactly this form, and installed first: otherwise pip may download gigabytes of GPU libraries.
TORCH="torch==2.13.0"

# `no_arguments "$@"`: for a recipe that takes no arguments.
no_arguments() { [ $# = 0 ] || fail "this recipe takes no arguments, but got \`$1\`: see \`bash $0 --help\`"; }

# Print a command, quoted for the shell, and run it unless this is a dry run.
run() {
    local word
    printf '$'
    for word in "$@"; do
        case "$word" in
        "" | *[!a-zA-Z0-9_.,:/=+-]*) printf ' %s' "${word@Q}" ;;
        *) printf ' %s' "$word" ;;
        esac
    done
    printf '\n'
    if [ "$DRY_RUN" = 0 ]; then "$@"; fi
}

nmtgrid() { python -m nmtgrid "$@"; }

# `words_of COMMAND...`: print its words, one per line, with placeholders for the folders RUNS and NMTGRID_DATA.
words_of() {
    local text
    text="$(printf '%s\n' "$@")"
    text="${text//"$RUNS/"/RUNS/}"
    if [ -n "${NMTGRID_DATA:-}" ]; then text="${text//"$NMTGRID_DATA/"/NMTGRID_DATA/}"; fi
    say "$text"
}

# `made_by FILE COMMAND...`: whether FILE, if it exists, contains the words of this command.
made_by() { [ ! -e "$1" ] || [ "$(<"$1")" = "$(words_of "${@:2}")" ]; }

# `must_be_made_by RESULT COMMAND...`: fail if RESULT.command contains the words of another command.
must_be_made_by() {
    made_by "$1.command" "${@:2}" || fail "$1 was made with other settings. Set another LABEL (if the recipe \
has it) or RUNS for this run, or remove $1. Then (<) and now (>):
$(diff "$1.command" <(words_of "${@:2}") | grep '^[<>]')"
}

# `note FILE COMMAND...`: write the words of the command to FILE.
note() { [ "$DRY_RUN" != 0 ] || words_of "${@:2}" >"$1"; }

# `once RESULT COMMAND...`: run a command that writes the file RESULT, unless RESULT is current (see `is_current`).
once() {
    local result="$1"
    shift
    if is_current "$result" "$@"; then say "$result already exists."; return; fi
    run "$@"
    note "${result%.*}.command" "$@"
}

# `is_current RESULT COMMAND...`: whether RESULT exists, is complete, was made by the same command, and is not older
# than any model that the command names.
is_current() {
    local word
    [ -s "$1" ] && made_by "${1%.*}.command" "${@:2}" || return 1
    case "$1" in */results.json) ! grep -q '"complete": false' "$1" || return 1 ;; esac
    for word in "${@:2}"; do
        [ ! "${word#*=}/done.json" -nt "$1" ] || return 1
    done
}

# `units DATA OPTION... -- OPTION...`: make a dataset with the options of `preprocess` before `--` and those of
# `bpe learn` after it, unless it exists.
units() {
    local data="$1" text=()
    if has_units "$data"; then must_be_made_by "$@"; return; fi
    shift
    local all=("$@")
    while [ "$1" != -- ]; do text+=("$1"); shift; done
    shift
    run nmtgrid preprocess "${text[@]}" --overwrite --out "$data"
    run nmtgrid bpe learn "$data" "$@"
    note "$data.command" "${all[@]}"
}

# `has_units DATA`: whether the dataset is complete; its manifest is written last.
has_units() { grep -qs '"units"' "$1/manifest.json"; }

# Print the dependencies in `pyproject.toml` (with the extra $1, if any) that are not installed.
missing_packages() {
    python - "$PROJECT/pyproject.toml" "${1:-}" <<'END'
import re, sys, tomllib
from importlib.metadata import PackageNotFoundError, version

project = tomllib.load(open(sys.argv[1], "rb"))["project"]
requirements = project["dependencies"] + project["optional-dependencies"].get(sys.argv[2], [])
for name in (re.split(r"[<>=~!; \[]", text)[0] for text in requirements):
    try:
        version(name)
    except PackageNotFoundError:
        print(name)
END
}

# Activate an environment with all dependencies of nmtgrid (and of the extra $1).
environment() {
    local extra="${1:-}" folder="${NMTGRID_VENV:-}" missing
    local pins=() active="${VIRTUAL_ENV:-${CONDA_PREFIX:-}}"
    if [ "$DRY_RUN" != 0 ]; then return; fi
    if [ -z "$folder$active" ]; then folder="$PROJECT/.venv"; fi
    if [ -n "$folder" ]; then
        if [ ! -x "$folder/bin/python" ]; then
            check_python "${PYTHON:-python3}"
            run "${PYTHON:-python3}" -m venv --upgrade-deps "$folder"
        fi
        export VIRTUAL_ENV="$(cd "$folder" && pwd)"
        export PATH="$VIRTUAL_ENV/bin:$PATH"
        hash -r
        pins=(-c "$PROJECT/constraints.txt")
    fi
    check_python python
    missing="$(missing_packages "$extra")"
    if grep -qx torch <<<"$missing"; then
        run python -m pip install -qq "$TORCH"
        # With PIP_COMPILE=0, this byte-compiles torch while pip installs the other packages.
        python -c "import torch._dynamo, torch.distributed.fsdp" 2>/dev/null &
    fi
    if [ -n "$missing" ]; then
        run python -m pip install -qq "${pins[@]}" -e "$PROJECT${extra:+[$extra]}"
    fi
    # Run this checkout even if another one is installed in the environment.
    export PYTHONPATH="$PROJECT${PYTHONPATH:+:$PYTHONPATH}"
    say "Using $(command -v python) ($(python --version))"
}

check_python() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
        fail "\`$1\` is not Python 3.11 or later. Set PYTHON: PYTHON=/path/to/python3.11 bash $0"
}

# Download the address $1 to the file $2, unless it exists.
fetch() {
    if [ -s "$2" ]; then
        say "$2 already exists."
    elif [ "$DRY_RUN" != 0 ]; then
        say "\$ download $1 to $2"
    else
        mkdir -p "$(dirname "$2")"
        say "Downloading $1"
        curl -fsSL --retry 3 -o "$2.part" "$1" || fail "$1 could not be downloaded. \
Fetch it another way and save it as $2, or set NMTGRID_DATA to a folder with the data."
        mv "$2.part" "$2"
    fi
}

# `multi30k_text SOURCE TARGET FOLDER`: set TEXT to a folder with Multi30k's {train,valid,test} in both
# languages (cs, de, en, fr): the one in NMTGRID_DATA, or FOLDER, to which the public files are downloaded.
multi30k_text() {
    local language address=https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw
    for language in "$1" "$2"; do
        [[ " cs de en fr " == *" $language "* ]] || fail "Multi30k has no language $language: cs de en fr"
    done
    [ "$1" != "$2" ] || fail "source and target are both $1"
    if own_text multi30k; then return; fi
    TEXT="$3"
    for language in "$1" "$2"; do
        fetch "$address/train.$language.gz" "$TEXT/train.$language.gz"
        fetch "$address/val.$language.gz" "$TEXT/valid.$language.gz"
        fetch "$address/test_2016_flickr.$language.gz" "$TEXT/test.$language.gz"
    done
}

# Make the dataset $3 of Multi30k from language $1 to language $2, lower-cased, 8,000 (or $6) joint merges, unless
# it exists; downloaded texts go to $4. No pair is filtered out; $5 is the number of training pairs (default: all).
multi30k_dataset() {
    local train
    multi30k_text "$1" "$2" "$4"
    train="$TEXT/train"
    if [ -n "${5:-}" ]; then
        train="$4/train-$5"
        run python "$PROJECT/recipes/fewer_pairs.py" "$5" "$1" "$2" --text "$TEXT/train" --out "$train"
    fi
    units "$3" --source-lang "$1" --target-lang "$2" --lowercase --max-ratio 9 --workers 0 \
        --train "$train" --valid "$TEXT/valid" --test "$TEXT/test" -- --merges "${6:-8000}" --joint
}

# Make the dataset $1 of PAIRS (10,000) pairs of the embedded toy corpus, unless it exists.
toy_dataset() { units "$1" --toy "${PAIRS:-10000}" -- --merges 700 --separate; }

# The same, with a joint vocabulary.
toy_joint_dataset() { units "$1" --toy "${PAIRS:-10000}" -- --merges 700 --joint-vocabulary; }

# The same, with words as units.
toy_words_dataset() { units "$1" --toy "${PAIRS:-10000}" -- --words --min-count 1; }

# Set TEXT to the folder $1 of NMTGRID_DATA; return 1 if NMTGRID_DATA is not set.
own_text() {
    [ -n "${NMTGRID_DATA:-}" ] || return 1
    TEXT="$NMTGRID_DATA/$1"
    [ -d "$TEXT" ] || [ "$DRY_RUN" != 0 ] || fail "NMTGRID_DATA has no folder $1: $TEXT"
    read_own
}

# `must_own FOLDER ADVICE`: the same for a corpus that cannot be downloaded.
must_own() {
    if own_text "$1"; then return; fi
    [ "$DRY_RUN" != 0 ] || fail "set NMTGRID_DATA to a folder with $2"
    TEXT="NMTGRID_DATA/$1"
}

# Record in INVOKED that the corpus came from NMTGRID_DATA.
read_own() { INVOKED="NMTGRID_DATA=DIR ${INVOKED#NMTGRID_DATA=DIR }"; }

# Make the dataset $3 of IWSLT'14 from language $1 to language $2 (de, en), lower-cased, 10,000 joint
# merges, unless it exists; the public archive goes to $4. Further arguments replace the options of `bpe
# learn`. With NMTGRID_DATA the texts are iwslt14.de-en/{train,valid,test}.{de,en}[.xz], tokenised, with
# bpe10k.codes[.xz].
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
    if [ $# -gt 4 ]; then units=("${@:5}"); fi
    units "$3" --source-lang "$1" --target-lang "$2" "${read[@]}" --max-words 175 --max-ratio 1.5 --workers 0 \
        -- "${units[@]}"
}

# Make the dataset $3 of IWSLT'15 from language $1 to language $2 (en, vi), with the published tokenisation and
# the words that occur at least five times, unless it exists; the public texts go to $4. With
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
    units "$3" --source-lang "$1" --target-lang "$2" --tokenize none --max-ratio 9 --workers 0 \
        --train "$TEXT/train" --valid "$TEXT/valid" --test "$TEXT/test" -- --words --min-count 5
}

# Make the dataset $1 of WMT'15 De-En with 32,000 joint merges and a joint vocabulary, unless it
# exists, from NMTGRID_DATA's wmt15.de-en/{train,newstest2013,newstest2015}.{de,en}.
wmt15_dataset() {
    must_own wmt15.de-en "wmt15.de-en/{train,newstest2013,newstest2015}.{de,en}: Europarl v7, Common \
Crawl and News Commentary v10 in one file, and the test sets, from https://www.statmt.org/wmt15/translation-task.html"
    units "$1" --source-lang de --target-lang en --max-words 175 --max-ratio 1.5 --workers 0 \
        --train "$TEXT/train" --valid "$TEXT/newstest2013" --test "$TEXT/newstest2015" \
        -- --merges 32000 --joint-vocabulary
}

# Make the dataset $1 of WMT'16 En-Ro with 35,000 joint merges and a joint vocabulary, unless it exists,
# from NMTGRID_DATA's wmt16.en-ro/{train,newsdev2016,newstest2016}.{en,ro}.
wmt16_dataset() {
    must_own wmt16.en-ro "wmt16.en-ro/{train,newsdev2016,newstest2016}.{en,ro}: 608,000 pairs \
in one file, and the two test sets, as https://github.com/nyu-dl/dl4mt-nonauto prepares them from \
https://www.statmt.org/wmt16/translation-task.html"
    units "$1" --source-lang en --target-lang ro --max-words 175 --max-ratio 9 --workers 0 \
        --train "$TEXT/train" --valid "$TEXT/newsdev2016" --test "$TEXT/newstest2016" \
        -- --merges 35000 --joint-vocabulary
}

# Make the dataset $1 of WMT'14 En-Fr with 40,000 joint merges and a joint vocabulary, unless it exists,
# from NMTGRID_DATA's wmt14.en-fr/{train,test}.{en,fr}; 26,000 pairs are held out.
wmt14_dataset() {
    must_own wmt14.en-fr "wmt14.en-fr/{train,test}.{en,fr}: all parallel texts in one file, and \
newstest2014, from https://www.statmt.org/wmt14/translation-task.html"
    units "$1" --source-lang en --target-lang fr --max-words 175 --max-ratio 1.5 --workers 0 \
        --train "$TEXT/train" --valid-every 1365 --test "$TEXT/test" -- --merges 40000 --joint-vocabulary
}

# `pairs_of_toys CORPUS...`: fail if PAIRS is set and none of these is a toy corpus.
pairs_of_toys() {
    [[ -z "$PAIRS_ASKED" || " $* " == *" toy"* ]] || fail "PAIRS has no effect here, on $*: see \`bash $0 --help\`"
}

# Make the dataset $2 of the corpus $1, unless it exists, and set SOURCE and TARGET to its languages;
# downloaded texts go to $3. For Multi30k, $4 is the number of training pairs and $5 that of merges.
dataset() {
    # PAIRS is valid if any of several CORPORA is a toy corpus.
    pairs_of_toys ${CORPORA:-$1}
    case "$1" in
    toy*) SOURCE=qa TARGET=qb ;;
    multi30k) SOURCE=de TARGET=en ;;
    *) SOURCE="${1: -5:2}" TARGET="${1: -2}" ;;
    esac
    case "$1" in
    toy) toy_dataset "$2" ;;
    toy-joint) toy_joint_dataset "$2" ;;
    toy-words) toy_words_dataset "$2" ;;
    multi30k | multi30k-??-??) multi30k_dataset "$SOURCE" "$TARGET" "${@:2}" ;;
    iwslt14-de-en | iwslt14-en-de) iwslt14_dataset "$SOURCE" "$TARGET" "$2" "$3" ;;
    iwslt15-en-vi | iwslt15-vi-en) iwslt15_dataset "$SOURCE" "$TARGET" "$2" "$3" ;;
    wmt16-en-ro) wmt16_dataset "$2" ;;
    wmt15-de-en) wmt15_dataset "$2" ;;
    wmt14-en-fr) wmt14_dataset "$2" ;;
    *) fail "there is no corpus $1: toy toy-joint toy-words multi30k multi30k-en-de (or others of cs de \
en fr) iwslt14-de-en iwslt14-en-de \
iwslt15-en-vi iwslt15-vi-en wmt16-en-ro wmt15-de-en wmt14-en-fr" ;;
    esac
}

# Print the preset for the corpus $1; both directions share it.
preset_of() {
    case "$1" in
    iwslt14-*) say iwslt14-de-en ;;
    iwslt15-*) say iwslt15-en-vi ;;
    multi30k-*) say multi30k ;;
    toy-*) say toy ;;
    *) say "$1" ;;
    esac
}

# `five_blocks`: set SHAPE to the options of Pervasive Attention in tables 3.4 to 3.6 and figures 3.8, A.1 and
# A.2 on Multi30k: five blocks; the preset has fewer.
five_blocks() {
    SHAPE=()
    case "$ON" in
    multi30k*)
        SHAPE=(--set model.depth=5 --set model.size=96 --set model.feed_forward_size=192)
        ;;
    esac
}

# `limits UPDATES MINUTES`: set LIMIT to the options that train for UPDATES updates or, if that is 0, for MINUTES
# minutes of processor time; if both are 0, the preset's limit applies.
limits() {
    LIMIT=()
    if [ "$1" != 0 ]; then
        LIMIT=(--max-updates "$1" --max-minutes 0 --set training.schedule=cosine
            --set "training.warmup_updates=$(($1 / 12))" --set training.clock=processor)
    elif [ "$2" != 0 ]; then
        LIMIT=(--max-minutes "$2" --max-updates 0 --set training.clock=processor
            --set training.schedule=cosine-time)
    fi
}

# `tiny ARCHITECTURE`: set TINY to the options of a tiny model if SMALL=1, else to nothing.
tiny() {
    local setting settings
    TINY=()
    if [ "$SMALL" != 1 ]; then return; fi
    case "$1" in
    pervasive) settings="depth=2 size=32 feed_forward_size=64 target_kernel=3 source_kernel=3" ;;
    pervasive-densenet) settings="depth=3 growth=8 kernel=3 embedding_size=32" ;;
    transformer)
        settings="encoder_depth=2 decoder_depth=2 size=32 encoder_size=0 feed_forward_size=64 heads=4" ;;
    bilstm) settings="encoder_depth=1 decoder_depth=1 size=32" ;;
    convs2s) settings="encoder_depth=2 decoder_depth=2 size=32 embedding_size=32" ;;
    *) settings="size=32" ;;
    esac
    for setting in $settings; do TINY+=(--set "model.$setting"); done
    TINY+=(--set batches.max_tokens=400 --set batches.accumulation=1 --set training.learning_rate=0.02
        --set training.log_updates=10 --set training.average=0 --set training.validate_bleu=false
        --set training.validate_epochs=0 --set training.validate_minutes=0
        --set training.validate_updates=0)
}

# `train_model MODEL ARCHITECTURE PRESET SEED UPDATES MINUTES OPTION...`: train MODEL on $DATA for UPDATES
# updates or MINUTES (see `limits`) with these options and those of SETS, unless it exists; fail if it was trained,
# or an interrupted run started, with other settings. The settings in the file CONFIG come after the preset.
train_model() {
    local model="$1" arch="$2" preset="$3" seed="$4" begin=--overwrite words=() options=()
    tiny "$arch"
    limits "$5" "$6"
    words=(--arch "$arch" --preset "$preset" --seed "$seed" ${CONFIG:+--config "$CONFIG"}
        "${TINY[@]}" "${LIMIT[@]}" "${@:7}" "${SETS[@]}")
    set -- "${words[@]}"
    words+=("$DATA" ${CONFIG:+"$(cksum "$CONFIG" 2>/dev/null || true)"})
    if [ -s "$model/done.json" ]; then
        must_be_made_by "$model" "${words[@]}"
        say "$model has already been trained."
        return
    fi
    if [ "${RESUME:-0}" = 1 ] && [ -e "$model/config.json" ]; then
        must_be_made_by "$model" "${words[@]}"
        begin=--resume
    fi
    while [ "$#" -gt 0 ]; do
        # A resumed run continues from its own weights.
        if [ "$1" = --init ] && [ "$begin" = --resume ]; then shift 2; continue; fi
        options+=("$1")
        shift
    done
    note "$model.command" "${words[@]}"
    run nmtgrid train "$DATA" "$begin" "${options[@]}" --out "$model" --json "$model.train.json"
    # Another recipe that failed on this folder meanwhile has overwritten the file.
    note "$model.command" "${words[@]}"
    run mv "$model.train.json" "$model/done.json"
}

# `translate MODEL SPLIT BEAM OPTION...`: translate that split of $DATA, unless that was done; set SCORES to
# the file of its scores, MODEL/SPLIT-beamBEAM.json. The translations are in MODEL/SPLIT-beamBEAM.txt.
translate() {
    SCORES="$1/$2-beam$3.json"
    once "$SCORES" nmtgrid decode "$1" --data "$DATA" --split "$2" --beam "$3" \
        --out "${SCORES%.json}.txt" --json "$SCORES" "${@:4}"
}

# `force MODEL SPLIT OPTION...`: score the references of that split by forced decoding, unless that was done; their
# perplexity is written to MODEL/SPLIT-forced.json.
force() {
    once "$1/$2-forced.json" nmtgrid decode "$1" --data "$DATA" --split "$2" --forced \
        --json "$1/$2-forced.json" "${@:3}"
}

# `significance EXPERIMENT SPLIT NAME...`: p-values of BLEU (largest of BEAMS) against the first model, for each seed.
significance() {
    local seed name files
    for seed in $SEEDS; do
        files=()
        for name in "${@:3}"; do files+=("$name=$HERE/$name-seed$seed/$2-beam${BEAMS##* }.txt"); done
        run nmtgrid analyze compare "${files[@]}" --data "$DATA" --split "$2" --bootstrap 1000 \
            --json "$HERE/$1-seed$seed.compare.json"
    done
}

BESIDE=()

# `beside LOG COMMAND...`: run a command in the background, JOBS (1) at a time, with its output in LOG; with
# JOBS=1 run it in the foreground. `all_done` waits for all.
beside() {
    if [ "${JOBS:-1}" -le 1 ] || [ "$DRY_RUN" != 0 ]; then
        "${@:2}"
        return
    fi
    while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do sleep 1; done
    say "In the background: ${*:2} (log: $1)"
    "${@:2}" >"$1" 2>&1 &
    BESIDE+=("$!=$1")
}

# Wait for all background jobs; fail with the last lines of one that failed.
all_done() {
    local job failed=()
    for job in "${BESIDE[@]}"; do wait "${job%%=*}" || failed+=("${job#*=}"); done
    BESIDE=()
    [ ${#failed[@]} = 0 ] || fail "background jobs failed: ${failed[*]}
$(tail -n 5 "${failed[0]}")"
}

# `ensemble FOLDER BEAM MODEL...`: translate the test split of $DATA with an ensemble of models, unless that was
# done; set SCORES to FOLDER/test-beamBEAM.json.
ensemble() {
    local members=() model
    for model in "${@:4}"; do members+=(--ensemble "$model"); done
    SCORES="$1/test-beam$2.json"
    run mkdir -p "$1"
    once "$SCORES" nmtgrid decode "$3" "${members[@]}" --data "$DATA" --split test --beam "$2" \
        --out "${SCORES%.json}.txt" --json "$SCORES"
}

# `one_model PRESET SEED`: train $MODEL-seedSEED with the architecture ARCH (pervasive) on $DATA for MINUTES (or
# UPDATES), and translate the test split with beam size BEAM (5).
one_model() {
    local limit=()
    if [ "${UPDATES:-0}" = 0 ]; then limit=(--max-minutes "$MINUTES"); fi
    train_model "$MODEL-seed$2" "${ARCH:-pervasive}" "$1" "$2" "${UPDATES:-0}" 0 "${limit[@]}"
    translate "$MODEL-seed$2" test "${BEAM:-5}"
}

# `train_and_score PRESET`: a model for each of SEEDS, JOBS (1) at a time, and the ensemble if there are several.
train_and_score() {
    local seed models=() more=()
    run mkdir -p "$(dirname "$MODEL")"
    for seed in $SEEDS; do
        models+=("$MODEL-seed$seed")
        beside "$MODEL-seed$seed.log" one_model "$1" "$seed"
    done
    all_done
    if [ ${#models[@]} -gt 1 ]; then
        ensemble "$MODEL-ensemble" "${BEAM:-5}" "${models[@]}"
        more=(--ensemble "$SCORES")
    fi
    run python "$PROJECT/recipes/pervasive_table.py" scores "$1=$MODEL" --seeds "$SEEDS" "${more[@]}" \
        --out "$MODEL-table"
    record one-model "One model" "$MODEL-table.json"
}

# `record EXPERIMENT TITLE TABLE.json [PICTURE.png]`: save the results of an experiment, for RESULTS.md, with the
# remark NOTE, if set, and with LABEL in its name and title.
record() {
    local name="$1${LABEL:+-$LABEL}"
    run python "$PROJECT/recipes/results.py" keep "$name" --title "$2${LABEL:+, $LABEL}" --table "$3" \
        --command "$INVOKED" --seeds "${SEEDS:-${SEED:-1}}" \
        --out "$RUNS/results/$name${ON:+-$ON}.json" ${4:+--picture "$4"} ${NOTE:+--note "$NOTE"}
}
