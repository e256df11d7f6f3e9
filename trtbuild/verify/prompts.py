"""Ten texts to continue: prose, dialogue, code, numbers and several scripts."""

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived a",
    'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
    "Question: A train leaves at 9:40 and arrives at 13:05. How long does it travel?\nAnswer:",
    "The three most important causes of the French Revolution were",
    "Dear Ms Okafor,\n\nThank you for your letter of 3 May about the",
    "Water boils at 100 degrees Celsius at sea level because",
    "SELECT customer_id, SUM(amount) FROM orders WHERE",
    "Le petit chat est assis sur",
    "1, 1, 2, 3, 5, 8, 13, 21,",
)
