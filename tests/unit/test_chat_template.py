"""A model's chat template is somebody else's program: it sees its messages and nothing else, and it comes to an end."""

import threading
import time

import pytest

from tandem.engine import chat
from tandem.engine.chat import ChatError, ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
MANY = [{"role": "user", "content": "hi"}] * 1024


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "RENDER_S", 0.2)


def render(source: str, messages=MESSAGES) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages)


def test_a_template_of_the_usual_kind_is_rendered_as_before():
    source = """
    {%- macro part(message) %}<{{ message.role }}>{{ message.content | trim }}{% endmacro %}
    {{- bos_token }}
    {%- for message in messages if message.role != 'system' %}
        {%- if loop.first %}first {% else %}then {% endif %}
        {{- part(message) }}
        {%- if loop.index > 5 %}{% break %}{% endif %}
    {%- else %}nothing
    {%- endfor %}
    {%- if add_generation_prompt %}{{ '-' * 3 }}{% endif %}"""
    assert render(source) == "<s>first <user>hithen <assistant>yes---"
    assert render("{% for x in [] %}{{ x }}{% else %}none{% endfor %}") == "none"


def test_a_thousand_messages_are_no_long_loop():
    assert len(render("{% for message in messages %}{{ message.content }}{% endfor %}", MANY)) == 2048


ENDLESS = {
    "loops within loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops that print": "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "loops with an else": "{% for a in range(99999) %}{% for b in range(99999) %}{% else %}{% endfor %}{% endfor %}",
    "a recursive loop": "{% for a in [[1]] recursive %}{{ loop([a, a]) }}{% endfor %}",
    "a macro that calls itself": "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "macros to a bounded depth": (
        "{% macro f(n) %}{% if n < 40 %}{{ f(n + 1) }}{{ f(n + 1) }}{% endif %}{% endmacro %}{{ f(0) }}"
    ),
    "a block that calls itself": (
        "{% macro f(n) %}{% if n < 40 %}{{ caller(n) }}{% endif %}{% endmacro %}"
        "{% macro g(n) %}{% call(m) f(n) %}{{ g(m + 1) }}{{ g(m + 1) }}{% endcall %}{% endmacro %}{{ g(0) }}"
    ),
    "a long range": "{{ range(10 ** 9) | list }}",
    "a text without end": "{{ 'x' * 10 ** 12 }}",
    "a list without end": "{{ ['x'] * 10 ** 12 }}",
    "the other way round": "{{ 10 ** 12 * 'x' }}",
    "a number without end": "{{ 9 ** 9 ** 9 }}",
    "a number by steps": "{% set n = namespace(x=9) %}{% for a in range(99999) %}{% set n.x = n.x ** 9 %}{% endfor %}",
}


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
def test_a_template_that_does_not_end_ends_with_an_error(source: str):
    with pytest.raises(ChatError, match="refuses these messages"):
        render(source)


def test_slow_steps_end_by_the_time(monkeypatch):
    moments = iter(range(10**6))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(moments)))
    with pytest.raises(ChatError, match="does not come to an end"):
        render("{% for a in range(99999) %}{% endfor %}")


def test_each_rendering_and_each_thread_has_a_budget_of_its_own(monkeypatch):
    monkeypatch.setattr(chat, "STEPS", 3)
    template = ChatTemplate("{% for message in messages %}{{ message.content }}{% endfor %}", {})
    for _ in range(3):
        assert template.render(MESSAGES) == "hiyes"
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.append(template.render(MESSAGES)))
    thread.start()
    thread.join()
    assert told == ["hiyes"]
    with pytest.raises(ChatError):
        template.render(MESSAGES * 2)


OUTSIDE = {
    "classes": "{{ ''.__class__.__mro__ }}",
    "globals of a function": "{{ raise_exception.__globals__ }}",
    "globals by another way": "{{ strftime_now['__globals__'] }}",
    "by a filter": "{{ messages | attr('__class__') }}",
    "the budget": "{{ self._TemplateReference__context.environment.begin() }}",
    "what was given": "{% set _ = messages.append(1) %}{{ messages }}",
    "what a message holds": "{% set _ = messages[0].update(role='system') %}",
    "a file": "{% include '/etc/passwd' %}",
    "another module": "{% import 'os' as os %}",
    "a format": "{{ '{0.__class__.__mro__}'.format(messages) }}",
}


@pytest.mark.parametrize("source", OUTSIDE.values(), ids=OUTSIDE)
def test_a_template_reaches_nothing_outside(source: str):
    messages = [dict(message) for message in MESSAGES]
    try:
        text = render(source, messages)
    except (ChatError, TypeError):
        text = ""
    assert messages == MESSAGES
    assert not any(word in text for word in ("class", "module", "root:", "globals"))


def test_what_a_client_writes_is_no_template():
    assert (
        render("{{ messages[0].content }}", [{"role": "user", "content": "{{ 7 * 7 }}{% raw %}"}])
        == "{{ 7 * 7 }}{% raw %}"
    )
