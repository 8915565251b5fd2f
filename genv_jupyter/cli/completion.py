"""``jupyter gpu completion``: what a shell is told so that Tab works, for both names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

NAME = "jupyter-gpu"
VARIABLE = "_JUPYTER_GPU_COMPLETE"

# `jupyter` belongs to others: where its second word is not `gpu`, whatever completed it goes on.
_BASH = """
_jupyter_gpu_before=$(complete -p jupyter 2>/dev/null | sed -n 's/.* -F \\([^ ]*\\) .*/\\1/p')
_jupyter_gpu_in_jupyter() {
    if [[ $COMP_CWORD -ge 2 && ${COMP_WORDS[1]} == gpu ]]; then
        COMP_WORDS=(jupyter-gpu "${COMP_WORDS[@]:2}")
        COMP_CWORD=$((COMP_CWORD - 1))
        _jupyter_gpu_completion jupyter-gpu
    elif [[ -n $_jupyter_gpu_before && $_jupyter_gpu_before != _jupyter_gpu_in_jupyter ]]; then
        "$_jupyter_gpu_before" "$@"
    elif [[ $COMP_CWORD -eq 1 ]]; then
        COMPREPLY=($(compgen -W "$(compgen -c jupyter- | sed 's/^jupyter-//' | sort -u)" \\
            -- "${COMP_WORDS[1]}"))
    fi
}
complete -o default -F _jupyter_gpu_in_jupyter jupyter
"""
_ZSH = """
_jupyter_gpu_before=${_comps[jupyter]}
_jupyter_gpu_in_jupyter() {
    if (( CURRENT >= 3 )) && [[ ${words[2]} == gpu ]]; then
        words=(jupyter-gpu "${(@)words[3,-1]}")
        (( CURRENT -= 1 ))
        _jupyter_gpu_completion
    elif [[ -n $_jupyter_gpu_before && $_jupyter_gpu_before != _jupyter_gpu_in_jupyter ]]; then
        $_jupyter_gpu_before
    else
        _default
    fi
}
compdef _jupyter_gpu_in_jupyter jupyter
"""
_FISH = """
function __jupyter_gpu_in_jupyter
    set -l said (commandline -opc)
    set -lx COMP_WORDS (string join -- ' ' jupyter-gpu $said[3..])
    set -lx COMP_CWORD (commandline -t)
    for item in (env _JUPYTER_GPU_COMPLETE=fish_complete jupyter-gpu)
        set -l parts (string split ',' -- $item)
        if test $parts[1] = file
            __fish_complete_path $COMP_CWORD
        else if test $parts[1] = plain
            echo $parts[2]
        end
    end
end
complete --no-files --command jupyter --condition '__fish_seen_subcommand_from gpu' \\
    --arguments '(__jupyter_gpu_in_jupyter)'
"""
_WRAPPERS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


@click.command()
@click.argument("shell", type=click.Choice(list(_WRAPPERS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Write what makes Tab complete; one line enables it.

    \b
      bash    eval "$(jupyter gpu completion bash)"     in ~/.bashrc
      zsh     eval "$(jupyter gpu completion zsh)"      in ~/.zshrc
      fish    jupyter gpu completion fish | source      in config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = context.find_root().command
    click.echo(kind(root, {}, NAME, VARIABLE).source() + _WRAPPERS[shell])
